"""llama-index with OpenAILike."""

from calls import API_KEY, BASE_URL, HELLO, MODEL, PERSON, WEATHER, Person, get_weather, report
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

llm = OpenAILike(
    model=MODEL,
    api_base=BASE_URL,
    api_key=API_KEY,
    temperature=0,
    is_chat_model=True,
    is_function_calling_model=True,
    should_use_structured_outputs=True,
)
tool = llm.chat_with_tools([FunctionTool.from_defaults(get_weather)], user_msg=WEATHER)
call = llm.get_tool_calls_from_response(tool)[0]
report(
    plain=llm.complete(HELLO).text,
    streamed=[piece.delta for piece in llm.stream_complete(HELLO)],
    tool=(call.tool_name, call.tool_kwargs),
    structured=llm.structured_predict(Person, PromptTemplate(PERSON)).model_dump(),
)
