"""What the files of a language model say without being loaded: for `nereid check`."""

from app.core.errors import internal
from backends.base import Model
from backends.packaged.llm.engine_arguments import model_folder, read_arguments
from backends.transformers_files import check_generates, check_weights


def inspect(model: Model) -> None:
    """Check the engine arguments, the architecture, and the headers of the weights.

    Raises:
        InferError: INTERNAL, as a load has it.
    """
    directory = str(model.version_directory)
    try:
        arguments = read_arguments(directory)
        folder = model_folder(directory, arguments.model, arguments.engine)
        (check_weights if arguments.engine == "transformers" else check_generates)(folder)
    except ValueError as error:
        raise internal(str(error)) from error
