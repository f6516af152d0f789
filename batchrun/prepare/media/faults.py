"""What can be wrong with a medium, before it is known which row it belongs to."""

from __future__ import annotations

from batchrun.errors import RowError


class MediaFault(Exception):
    """Why a medium cannot be used.

    `code` is a stable word, the message follows the name of the part at fault ("is larger than 20
    MB; ..."), and `status` is the HTTP status that a server would have given.
    """

    def __init__(self, code: str, problem: str, *, status: int = 400):
        super().__init__(problem)
        self.code = code
        self.problem = problem
        self.status = status

    def bare(self) -> MediaFault:
        """The same without the frames that raised it, which hold whole files and pictures."""
        return MediaFault(self.code, self.problem, status=self.status)

    def at(self, param: str) -> RowError:
        """The same as the error of the row whose part `param` it is."""
        return RowError(self.code, f"{param} {self.problem}", status=self.status, param=param)


def megabytes(nbytes: int) -> str:
    return f"{nbytes / 10**6:,.0f} MB"
