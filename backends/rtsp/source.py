"""Opening what a URL names as a container of FFmpeg, which by itself opens nothing.

Files and HTTP are read here and given to FFmpeg as bytes, RTSP goes through a relay. Its protocols are
switched off but for the connection to the relay, so a playlist or a redirect leads nowhere; so are its many
formats and codecs but for those of cameras and common files.
"""

import os
from contextlib import suppress
from typing import IO, Any, Final

import av
from av.container import InputContainer
from av.video.stream import VideoStream

from app.core.errors import InferError, invalid_arg, not_found, unavailable
from backends.rtsp.http_file import HttpFile
from backends.rtsp.policy import open_file, redacted
from backends.rtsp.relay import Connection, Relay
from backends.rtsp.settings import Settings, StreamRequest

_FORMATS: Final = "mov,mp4,matroska,webm,avi,mpegts,mpeg,flv,ogg,h264,hevc,ivf,m4v,mjpeg,mpjpeg"
_CODECS: Final = "h264,hevc,mjpeg,mpeg1video,mpeg2video,mpeg4,vp8,vp9,libdav1d,av1,h263,theora"
_NO_PROTOCOL: Final = "none"
_READ_BYTES: Final = 256 << 10


class Source:
    """A video that a client may have opened. `abort` is for any thread, everything else for one.

    Attributes:
        name: its address, without passwords.
    """

    def __init__(self, settings: Settings, wanted: StreamRequest) -> None:
        """Check the address; names are resolved by `open`.

        Raises:
            InferError: INVALID_ARG for what is not allowed, NOT_FOUND for a missing file.
        """
        self._settings = settings
        self._wanted = wanted
        self._parts = settings.allowed.split(wanted.url)
        self.name = redacted(self._parts)
        self._file = settings.allowed.file(self._parts) if self._parts.scheme == "file" else None
        self._open: list[Any] = []
        self._aborted = False

    def open(self) -> tuple[InputContainer, VideoStream]:
        """Open it, again if it was open, and choose its first stream of video.

        Raises:
            InferError: it cannot be, with a reason for the user.
        """
        self.close()
        try:
            container = self._container()
            return container, self._stream(container)
        except InferError:
            raise
        except (OSError, av.FFmpegError) as error:
            raise self.failure(error) from error

    def trouble(self) -> InferError | None:
        """Return why what is open has ended, as far as FFmpeg does not know: to it that is an end."""
        for each in self._open:
            if isinstance(each, Relay) and each.silent:
                return self._silence()
            if isinstance(each, HttpFile) and each.error is not None:
                return self._reason(each.error)
        return None

    def failure(self, error: BaseException) -> InferError:
        """Return what to tell a user about an error of reading."""
        return self.trouble() or self._reason(error)

    def _silence(self) -> InferError:
        return unavailable(f"'{self.name}' sent nothing for {self._settings.read_timeout:g} s")

    def _reason(self, error: BaseException) -> InferError:
        if isinstance(error, InferError):
            return error
        if isinstance(error, TimeoutError | av.ExitError):
            return self._silence()
        if isinstance(error, av.HTTPUnauthorizedError | av.HTTPForbiddenError):
            return invalid_arg(f"'{self.name}' refused the user name and password of the URL")
        if isinstance(error, av.HTTPNotFoundError):
            return not_found(f"'{self.name}' does not exist on its server")
        # ArgumentError is how a format that is not allowed fails.
        if isinstance(error, av.InvalidDataError | av.ArgumentError):
            return invalid_arg(
                f"'{self.name}' is no video that this model reads: MP4, Matroska, AVI, MPEG, FLV, Ogg, raw"
                " H.264 or HEVC, or JPEG; playlists are not followed"
            )
        return unavailable(f"'{self.name}': {getattr(error, 'strerror', None) or error}")

    def abort(self) -> None:
        """Make whoever opens or reads it fail at once."""
        self._aborted = True
        for opened in list(self._open):
            _abort(opened)

    def close(self) -> None:
        """Close what is open."""
        opened, self._open = self._open, []
        for each in reversed(opened):
            each.close()
            if isinstance(each, Relay):
                each.join()

    def _keep(self, opened: Any) -> Any:
        """Have `close` close it, and `abort` abort it, even if that has been called already."""
        self._open.append(opened)
        if self._aborted:
            _abort(opened)
        return opened

    def _kept(self, container: InputContainer) -> InputContainer:
        self._keep(container)
        return container

    def _container(self) -> InputContainer:
        settings = self._settings
        limits = settings.open_timeout, settings.read_timeout
        scheme = self._parts.scheme
        if scheme.startswith("rtsp"):
            protocols = "tcp,udp,rtp" if self._wanted.transport == "udp" else "tcp"
            options = {"rtsp_transport": self._wanted.transport, "protocol_whitelist": protocols}
            url = f"rtsp://{self._user()}127.0.0.1:{self._relay().port}{self._path()}"
            return self._kept(av.open(url, "r", "rtsp", options=self._options(options), timeout=limits))
        if scheme == "file":
            assert self._file is not None
            file: IO[bytes] | HttpFile = self._keep(os.fdopen(open_file(self._file), "rb", 0))
        else:
            file = self._keep(HttpFile(settings.allowed, self._wanted.url, settings.read_timeout)).open()
        options = self._options({"protocol_whitelist": _NO_PROTOCOL})
        return self._kept(av.open(file, "r", options=options, buffer_size=_READ_BYTES, timeout=limits))

    def _relay(self) -> Relay:
        endpoint = self._settings.allowed.endpoint(self._parts)
        connection = self._keep(_Opening(endpoint, self._settings.open_timeout))
        camera = connection.connect()
        relay: Relay = self._keep(Relay(camera, self._settings.read_timeout))
        return relay

    def _user(self) -> str:
        user, at, _ = self._parts.netloc.rpartition("@")
        return user + at

    def _path(self) -> str:
        return f"{self._parts.path}?{self._parts.query}" if self._parts.query else self._parts.path

    def _options(self, options: dict[str, str]) -> dict[str, str]:
        limits = {
            "format_whitelist": f"rtsp,{_FORMATS}" if "rtsp_transport" in options else _FORMATS,
            "codec_whitelist": _CODECS,
            "max_pixels": str(self._settings.max_pixels),
        }
        return limits | options

    def _stream(self, container: InputContainer) -> VideoStream:
        if not container.streams.video:
            raise invalid_arg(f"'{self.name}' has no video")
        stream = container.streams.video[0]
        context = stream.codec_context
        if context is None or context.codec.name not in _CODECS.split(","):
            raise invalid_arg(f"'{self.name}': its video has a codec that this model does not read")
        self.check_size(context.width, context.height)
        context.thread_count = self._settings.threads
        context.options = {"max_pixels": str(self._settings.max_pixels)}
        return stream

    def check_size(self, width: int, height: int) -> None:
        """Check the size of a frame.

        Raises:
            InferError: INVALID_ARG for one that is too large.
        """
        if width * height > self._settings.max_pixels:
            raise invalid_arg(
                f"'{self.name}' has frames of {width} x {height}, more than the {self._settings.max_pixels}"
                " pixels of the model's max_pixels"
            )


class _Opening(Connection):
    """A connection whose socket a relay takes over."""

    def close(self) -> None:
        """Leave the socket to the relay."""


def _abort(opened: Any) -> None:
    if isinstance(opened, Connection | HttpFile):
        opened.abort()
    elif isinstance(opened, Relay):
        with suppress(OSError):
            opened.close()
