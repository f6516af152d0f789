"""A bucket of a real server, filled and looked into as another program would."""

from __future__ import annotations

import json
from itertools import count
from typing import Any
from urllib.request import Request, urlopen

_NUMBERS = count()


class Bucket:
    """A new bucket at the server `address`; `url` is what batchrun is to call it."""

    def __init__(self, address: str) -> None:
        import boto3

        self.address = address
        self.name = f"bucket{next(_NUMBERS)}"
        self.url = f"s3://{self.name}"
        self._client: Any = boto3.client("s3", endpoint_url=address)
        self.make()

    def make(self) -> None:
        self._client.create_bucket(Bucket=self.name)

    def put(self, key: str, data: bytes) -> str:
        """The URL of the new object."""
        self._client.put_object(Bucket=self.name, Key=key, Body=data)
        return f"{self.url}/{key}"

    def get(self, key: str) -> bytes:
        data: bytes = self._client.get_object(Bucket=self.name, Key=key)["Body"].read()
        return data

    def names(self) -> list[str]:
        listed = self._client.list_objects_v2(Bucket=self.name)
        return sorted(each["Key"] for each in listed.get("Contents", ()))

    def signed(self, key: str) -> str:
        """A web URL that whoever has it may read."""
        url: str = self._client.generate_presigned_url(
            "get_object", Params={"Bucket": self.name, "Key": key}
        )
        return url

    def check_credentials(self, after: str) -> str:
        """From so many calls on, the server takes nobody for whom they say they are; returns how
        many it was before."""
        headers = {"Content-Type": "text/plain"}
        call = Request(f"{self.address}/moto-api/reset-auth", after.encode(), headers)
        with urlopen(call) as response:
            return str(json.load(response)["PREVIOUS_INITIAL_NO_AUTH_ACTION_COUNT"])

    def clear(self) -> None:
        for key in self.names():
            self._client.delete_object(Bucket=self.name, Key=key)

    def delete(self) -> None:
        """It and what is in it; nothing where it is gone already."""
        try:
            self.clear()
            self._client.delete_bucket(Bucket=self.name)
        except self._client.exceptions.NoSuchBucket:
            pass
