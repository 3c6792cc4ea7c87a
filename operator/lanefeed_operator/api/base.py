"""The base of the API's models, apart so that parts of the spec can be modules of their own: `spec`, `images`."""

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

__all__ = ["Model"]


class Model(BaseModel):
    """Base: camel case outside, unknown fields refused, values frozen."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, populate_by_name=True, frozen=True)
