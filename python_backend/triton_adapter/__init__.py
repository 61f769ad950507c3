"""The only code that knows Triton's Python backend: tensors in, values out, and back again."""

from python_backend.host import bytecode
from python_backend.triton_adapter.start_watch import watch_imports

bytecode.keep()
watch_imports()
