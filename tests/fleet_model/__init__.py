"""A model of schedulers, edges and workers, driven at random: what they say, lose and do at will.

There is one scheduler, or two that contend for the row of the leader, which freeze, go on with what
they had before, die and cannot reach Postgres. Streams keep their order and lose what is under way
when they break; everything between streams is reordered at will. A break is noticed late: a peer may
be back before the scheduler knows.
"""

from fleet_model.peers import SimEdge, SimWorker, Wire
from fleet_model.schedulers import CheckedPlacement
from fleet_model.world import Pair, World

__all__ = ["CheckedPlacement", "Pair", "SimEdge", "SimWorker", "Wire", "World"]
