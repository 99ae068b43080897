"""What vLLM raises, as errors of ours."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import vllm.exceptions as vllm_errors
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from mulgil.errors import BadRequestError, EngineError, EngineUnavailableError, MulgilError, OverloadedError

log = logging.getLogger(__name__)


def _refused(error: Any) -> MulgilError:
    return BadRequestError(error.args[0] if error.args else str(error), param=getattr(error, "parameter", None))


def _failed(_: Any) -> MulgilError:
    return EngineError("The engine failed this request.")


def unavailable(_: Any) -> MulgilError:
    """The engine is gone, or asks for another try."""
    return EngineUnavailableError("The engine could not finish this request; another try may succeed.", retry_after=5.0)


def _busy(error: Any) -> MulgilError:
    return OverloadedError(error.message, retry_after=2.0)


# Complete on purpose: a test fails when vLLM grows an exception that is not listed here.
TRANSLATIONS: dict[type[Exception], Callable[[Any], MulgilError]] = {
    vllm_errors.VLLMError: _failed,
    vllm_errors.VLLMClientError: _refused,
    vllm_errors.VLLMValidationError: _refused,
    vllm_errors.VLLMUnprocessableEntityError: _refused,
    vllm_errors.VLLMNotFoundError: _failed,
    vllm_errors.LoRAAdapterNotFoundError: _failed,
    vllm_errors.VLLMServerError: _failed,
    vllm_errors.GenerationError: _failed,
    vllm_errors.RetryableRequestError: unavailable,
    vllm_errors.GracefulHTTPError: _busy,
    vllm_errors.QueueOverflowError: _busy,
    vllm_errors.MaxQueuedTokensError: _busy,
    vllm_errors.ProfilerAlreadyActiveError: _failed,
    EngineGenerateError: _failed,
    EngineDeadError: unavailable,
}


@contextmanager
def translated() -> Iterator[None]:
    """Turn whatever vLLM raises into an error of ours."""
    try:
        yield
    except MulgilError:
        raise
    except Exception as error:
        for kind in type(error).__mro__:
            if translation := TRANSLATIONS.get(kind):
                raise translation(error) from error
        log.exception("vLLM raised what it does not declare")
        raise _failed(error) from error
