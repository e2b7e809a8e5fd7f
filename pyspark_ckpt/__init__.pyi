# The public names at the top. Type checkers, the site and tests read this list, and so does __init__.py.
# isort: off

# Sessions
from .running.attachment import attach as attach
from .session import configure as configure

__version__: str

# Keyed operators
from .operators.keyed import keyed as keyed
from .operators.keyed_inputs import keyed_inputs as keyed_inputs
from .operators.keyed_inputs import KeyedInput as KeyedInput
from .operators.broadcast import BroadcastInput as BroadcastInput
from .operators.declarations.processors import KeyedProcessor as KeyedProcessor
from .operators.declarations.processors import Context as Context
from .operators.declarations.processors import VectorProcessor as VectorProcessor
from .operators.declarations.processors import VectorContext as VectorContext
from .operators.encoding.distinct_keys import Keys as Keys
from .operators.groups.with_states import with_states as with_states
from .operators.watermarks import with_watermark as with_watermark

# States and timers
from .operators.declarations.states import ValueState as ValueState
from .operators.declarations.states import ListState as ListState
from .operators.declarations.states import MapState as MapState
from .operators.declarations.reducing_states import ReducingState as ReducingState
from .operators.declarations.reducing_states import AggregatingState as AggregatingState
from .operators.declarations.partition_states import BroadcastState as BroadcastState
from .operators.declarations.partition_states import OperatorListState as OperatorListState
from .operators.declarations.ttl import Ttl as Ttl
from .operators.declarations.timers import Timers as Timers
from .operators.declarations.timers import Timer as Timer
from .operators.declarations.counters import MetricCounter as MetricCounter

# Savepoints
from .savepoints import savepoint as savepoint
from .savepoints import stop_with_savepoint as stop_with_savepoint
from .savepoints import restore as restore
from .running.rescaling import rescale as rescale
from .state_store.savepoints.savepoint import SavepointInfo as SavepointInfo

# Errors
from .state_store.errors import CkptError as CkptError
from .state_store.errors import InvalidInputError as InvalidInputError
from .state_store.errors import NotFoundError as NotFoundError
from .state_store.errors import FormatError as FormatError
from .state_store.errors import StorageError as StorageError
from .state_store.errors import ConflictError as ConflictError
from .state_store.errors import ProcessError as ProcessError
from .state_store.errors import LifecycleError as LifecycleError

# Modules
from . import errors as errors
from . import monitoring as monitoring
from . import moving as moving
from . import operators as operators
from . import reading as reading
from . import session as session
from . import testing as testing
from . import writing as writing
