"""LlamaIndex with its packages for servers of the OpenAI API."""

# /// script
# requires-python = ">=3.10"
# dependencies = [
#     "llama-index-core==0.14.25",
#     "llama-index-llms-openai-like==0.8.1",
#     "llama-index-embeddings-openai-like==0.4.0",
# ]
# ///

from __future__ import annotations

from llama_index.core import Document, VectorStoreIndex
from llama_index.core.llms import ChatMessage
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike

from tests.clients.uses import STACK, check, main, use

llm = OpenAILike(
    model=STACK.model,
    api_base=STACK.v1,
    api_key=STACK.key,
    max_tokens=32,
    context_window=2048,
    is_chat_model=True,
)
embedder = OpenAILikeEmbedding(model_name=STACK.embedder, api_base=STACK.v1, api_key=STACK.key)


@use("complete and chat")
def chat() -> None:
    check(llm.complete("The capital of France is").text, "nothing came")
    check(llm.chat([ChatMessage(role="user", content="Hello")]).message.content, "nothing came")


@use("chat, streamed")
def streamed() -> None:
    pieces = list(llm.stream_chat([ChatMessage(role="user", content="Hello")]))
    check(pieces[-1].message.content, pieces)


@use("index of documents, and a question to it")
def index() -> None:
    documents = [Document(text="Paris is the capital of France."), Document(text="Rome is in Italy.")]
    engine = VectorStoreIndex.from_documents(documents, embed_model=embedder).as_query_engine(
        llm=llm, similarity_top_k=1
    )
    answer = engine.query("What is the capital of France?")
    check(str(answer) and "Paris" in answer.source_nodes[0].text, answer)


if __name__ == "__main__":
    main()
