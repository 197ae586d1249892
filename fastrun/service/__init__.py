"""What every service is built with; knows no service."""
