"""What of Triton's API is not offered, and why: one table for HTTP and gRPC."""

from __future__ import annotations

_GET_POST = ("GET", "POST")
SHARED_MEMORY = "shared memory is not offered: send the tensors themselves"
REPOSITORY = "models are loaded and unloaded by the operator, not by clients"
TRACING = "tracing is the operator's to set"
LOGGING = "logging is the operator's to set"

# Methods, path, reason.
NOT_OFFERED: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (("POST",), "/v2/repository/models/{name}/load", REPOSITORY),
    (("POST",), "/v2/repository/models/{name}/unload", REPOSITORY),
    (_GET_POST, "/v2/trace/setting", TRACING),
    (_GET_POST, "/v2/models/{name}/trace/setting", TRACING),
    (_GET_POST, "/v2/logging", LOGGING),
    *(
        (methods, f"/v2/{kind}sharedmemory{rest}", SHARED_MEMORY)
        for kind in ("system", "cuda")
        for methods, rest in (
            (("GET",), "/status"),
            (("GET",), "/region/{region}/status"),
            (("POST",), "/region/{region}/register"),
            (("POST",), "/unregister"),
            (("POST",), "/region/{region}/unregister"),
        )
    ),
)

# Methods of gRPC, and the reason.
NOT_OFFERED_METHODS = {
    "RepositoryModelLoad": REPOSITORY,
    "RepositoryModelUnload": REPOSITORY,
    "TraceSetting": TRACING,
    "LogSettings": LOGGING,
    "SystemSharedMemoryStatus": SHARED_MEMORY,
    "SystemSharedMemoryRegister": SHARED_MEMORY,
    "SystemSharedMemoryUnregister": SHARED_MEMORY,
    "CudaSharedMemoryStatus": SHARED_MEMORY,
    "CudaSharedMemoryRegister": SHARED_MEMORY,
    "CudaSharedMemoryUnregister": SHARED_MEMORY,
}
