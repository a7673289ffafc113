"""A client of servers of the v2 protocol, Nereid and Triton: arrays in, arrays out.

with nereid_client.connect("http://localhost:8000") as server:
    result = server.model("simple")(INPUT0=[[1, 2]], INPUT1=[[3, 4]])
    print(result["OUTPUT0"])
"""

from nereid_client.aio import AsyncModel, AsyncSequence, AsyncServer
from nereid_client.errors import DeadlineExceeded, InputError, ServerError, Unavailable
from nereid_client.messages import Options
from nereid_client.result import Class, Result
from nereid_client.signature import Signature, TensorSpec
from nereid_client.sync import Model, Sequence, Server
from nereid_client.transport import Tls

connect = Server
connect_async = AsyncServer

__all__ = [
    "AsyncModel",
    "AsyncSequence",
    "AsyncServer",
    "Class",
    "DeadlineExceeded",
    "InputError",
    "Model",
    "Options",
    "Result",
    "Sequence",
    "Server",
    "ServerError",
    "Signature",
    "TensorSpec",
    "Tls",
    "Unavailable",
    "connect",
    "connect_async",
]
