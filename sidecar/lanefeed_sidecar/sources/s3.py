"""Objects of S3 and what speaks its protocol: listed with botocore, read by GETs of ranges that botocore signed.

Signing is botocore's: its credentials (environment, files, web identity, instance), endpoints and addressing are what
users expect (AWS_PROFILE, AWS_ENDPOINT_URL, ...). Reading is ours, since a retry must know what it retries:
botocore and pyarrow hide Retry-After, the range that came or its version (docs/adr/0010). Signed URLs stay in here.
"""

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lanefeed_sidecar.errors import ConfigError
from lanefeed_sidecar.sources.names import Name
from lanefeed_sidecar.sources.objects import Attempt, ObjectInfo, ReadFailed
from lanefeed_sidecar.sources.wire import Answer, Client, retry_after

__all__ = ["S3Store"]

#: Signed URLs are valid for so long, and used for half of it.
_VALID_SECONDS = 3600
_KEPT_URLS = 4096
_CODE = re.compile(rb"<Code>([A-Za-z0-9]+)</Code>")
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired", "InvalidToken"}
#: Keys that were rotated away look like these.
_ROTATED = {"InvalidAccessKeyId", "SignatureDoesNotMatch"}
_THROTTLED = {"SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "TooManyRequests"}


class S3Store:
    """One bucket."""

    def __init__(self, name: Name) -> None:
        """Raises ConfigError where botocore is missing, an option is unknown, or a setting makes no client."""
        try:
            import botocore.session  # noqa: F401
        except ImportError:
            raise ConfigError(f"data.uri {name.store} needs botocore to sign requests: install lanefeed[s3]") from None
        unknown = name.options.keys() - {"endpoint_override", "region", "scheme", "anonymous"}
        if unknown:
            raise ConfigError(
                f"data.uri {name.store}: option {sorted(unknown)[0]!r} is unknown; there are "
                "endpoint_override, region, scheme and anonymous"
            )
        self.bucket, self._options = name.authority, name.options
        self._region = name.options.get("region")
        self._client = Client()
        self._lock = threading.Lock()
        self._made = 0.0
        self._urls: dict[str, tuple[float, str]] = {}
        self._s3 = self._connect()
        self.place = f"s3://{self.bucket} at {self._s3.meta.endpoint_url}"

    def _connect(self) -> Any:
        import botocore.session
        from botocore import UNSIGNED
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError

        endpoint = self._options.get("endpoint_override")
        if endpoint and "://" not in endpoint:
            endpoint = f"{self._options.get('scheme', 'https')}://{endpoint}"
        anonymous = self._options.get("anonymous", "").lower() in ("true", "1")
        config = Config(
            signature_version=UNSIGNED if anonymous else "s3v4",
            retries={"total_max_attempts": 1},
            connect_timeout=self._client.timeouts.connect,
            read_timeout=self._client.timeouts.silent,
        )
        self._made = time.monotonic()
        # A session of its own each time: it holds the credentials that it found.
        session = botocore.session.Session()
        try:
            region = self._region or session.get_config_variable("region") or "us-east-1"
            return session.create_client("s3", region_name=region, endpoint_url=endpoint, config=config)
        except (ValueError, BotoCoreError) as error:
            raise ConfigError(
                f"data.uri s3://{self.bucket}: no client can be made of these settings: {error}; check the URI's "
                "options, AWS_ENDPOINT_URL, AWS_REGION, AWS_PROFILE and the files that they name"
            ) from None

    # ---- listing -----------------------------------------------------------------------------------------------

    def below(self, prefix: str) -> Iterator[ObjectInfo]:
        """See ObjectStore."""
        token: dict[str, str] = {}
        while True:
            page = self._call("list_objects_v2", Bucket=self.bucket, Prefix=prefix, **token)
            for item in page.get("Contents", ()):
                yield ObjectInfo(item["Key"], int(item["Size"]), item.get("ETag", ""))
            if not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def stat(self, key: str) -> ObjectInfo:
        """See ObjectStore."""
        found = self._call("head_object", Bucket=self.bucket, Key=key)
        return ObjectInfo(key, int(found["ContentLength"]), found.get("ETag", ""))

    def _call(self, what: str, **arguments: str) -> Any:
        with _botocore():
            return getattr(self._s3, what)(**arguments)

    # ---- reading -----------------------------------------------------------------------------------------------

    def _url(self, key: str) -> str:
        now = time.monotonic()
        with self._lock:
            made, url = self._urls.get(key, (0.0, ""))
            client = self._s3
        if url and now - made < _VALID_SECONDS / 2:
            return url
        arguments = {"Bucket": self.bucket, "Key": key}
        # Signing asks for new credentials where those of now end soon.
        with _botocore():
            url = client.generate_presigned_url("get_object", Params=arguments, ExpiresIn=_VALID_SECONDS)
        with self._lock:
            if len(self._urls) >= _KEPT_URLS:
                self._urls.pop(next(iter(self._urls)))
            if client is self._s3:
                self._urls[key] = (now, url)
        return url

    def read(self, key: str, start: int, view: memoryview, attempt: Attempt) -> str:
        """See ObjectStore."""
        answer = self._client.read(self._url(key), start, view, attempt, {})
        if answer.status not in (200, 206):
            self._refuse(answer)
        return answer.version

    def _refuse(self, answer: Answer) -> None:
        found = _CODE.search(answer.body)
        code = found[1].decode() if found else ""
        region = answer.headers.get("x-amz-bucket-region")
        if region and region != self._s3.meta.region_name and answer.status in (301, 400, 403):
            # The bucket says where it is.
            self._region = region
            raise ReadFailed("expired", f"the bucket is in the region {region}")
        raise _failed(answer.status, code, retry_after(answer.headers.get("Retry-After", ""), time.time()))

    def refresh(self, since: float) -> bool:
        """See ObjectStore: a new session finds what is in the files and the environment now."""
        with self._lock:
            if self._made < since:
                try:
                    made = self._connect()
                except ConfigError:
                    return True  # a file that is half written: the next try looks again
                self._s3.close()
                self._s3 = made
                self._urls.clear()
        return True

    def close(self) -> None:
        """See ObjectStore."""
        self._client.close()
        self._s3.close()


@contextmanager
def _botocore() -> Iterator[None]:
    """What botocore raises, as the kinds of failure that reads know. Raises ReadFailed."""
    from botocore import exceptions

    try:
        yield
    except exceptions.ClientError as error:
        about, meta = error.response.get("Error", {}), error.response.get("ResponseMetadata", {})
        status, headers = int(meta.get("HTTPStatusCode", 0)), meta.get("HTTPHeaders", {})
        wait = retry_after(headers.get("retry-after", ""), time.time())
        raise _failed(status, about.get("Code", ""), wait) from error
    except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError) as error:
        raise _no_credentials() from error
    except (exceptions.ConnectTimeoutError, exceptions.ReadTimeoutError) as error:
        raise ReadFailed("timeout", "no answer in time") from error
    except (
        exceptions.EndpointConnectionError,
        exceptions.ProxyConnectionError,
        exceptions.MetadataRetrievalError,
        exceptions.CredentialRetrievalError,
    ) as error:
        # The last two: what hands out credentials did not answer; it is asked again as a store is.
        raise ReadFailed("connect", "no connection") from error
    except exceptions.HTTPClientError as error:
        raise ReadFailed("reset", f"the connection broke: {error}") from error
    except exceptions.BotoCoreError as error:
        raise ReadFailed("refused", str(error)) from error


def _no_credentials() -> ReadFailed:
    return ReadFailed("credentials", "no credentials were found")


def _failed(status: int, code: str, wait: float = 0.0) -> ReadFailed:
    said = f"HTTP {status}" + (f" {code}" if code and not code.isdigit() else "")
    if code in _EXPIRED or code in _ROTATED:
        return ReadFailed("expired", said)
    if code in _THROTTLED or status in (429, 503):
        return ReadFailed("throttled", said, wait)
    if code in ("InternalError", "RequestTimeout") or status in (500, 502, 504):
        return ReadFailed("server", said)
    if status in (401, 403):
        return ReadFailed("denied", said)
    return ReadFailed("missing" if status == 404 else "refused", said)
