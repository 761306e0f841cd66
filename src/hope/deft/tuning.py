"""`Tuning`: the model to fine-tune, its frozen entries, and the return to the source task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor, nn

from hope.deft.adapters import Adapter, check_core, merged
from hope.deft.gate import Gate
from hope.deft.grow import Growth
from hope.deft.heads import head_of, put_head
from hope.deft.input_size import InputSize
from hope.deft.masks import in_head
from hope.deft.penalty import Penalty
from hope.deft.source_protocol import source
from hope.deft.statistics import hold, snapshot
from hope.errors import InvalidPartition
from hope.storage.adapter import Cost


class Tuning:
    """A model prepared for fine-tuning. Train `tuning.model` with any loop and optimizer.

    Attributes:
        model: the model, of the source model's class; its `state_dict` has the same keys.
        method: "deft", or a baseline's name.
        head: the replaced module; "" if the head is frozen.
        source_head: the source's head, unchanged.
        frozen: parameter or running mean -> a mask that broadcasts to it, True if it belongs to the core.
        columns: the head's parameters (names within it) -> True if they read slack.
        statistics: the source's running statistics.
        holds_statistics: whether the running statistics of frozen channels are frozen, too.
        original: fingerprint of the source checkpoint.
        rewritten: tensor -> True where merging and severing changed it.
        absorbed_head: parameters of the source head (names within it) that compensate for slack; empty
            after masking.
        notes: messages for the user.
        cost: the cost of severing for the source task; None for a baseline, which severs nothing.
        growth: how the source model was widened, if it was.
        shares_head: whether the new head started as the source's.
        adapters: the names of all adapters on this core (see `add_adapter`).
        active_adapter: the one in `model`.

    Example:
        >>> import torch, hope
        >>> net = torch.nn.Sequential(
        ...     torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3)
        ... )
        >>> part = hope.deft.partition(net, torch.zeros(2, 4), percentile=50)
        >>> tuning = hope.deft.prepare(net, part, head=2)
        >>> tuning.method, tuning.head, tuning.model[3].out_features, tuning.source_head.out_features
        ('deft', '3', 2, 3)
        >>> free, total = tuning.trainable()
        >>> 0 < free < total
        True
    """

    def __init__(  # noqa: PLR0913
        self,
        model: nn.Module,
        *,
        method: str,
        head: str,
        new_head: nn.Module,
        frozen: Mapping[str, Tensor],
        columns: Mapping[str, Tensor],
        freeze_statistics: bool,
        original: str,
        masks_source: bool,
        rewritten: Mapping[str, Tensor] | None = None,
        penalty: Penalty | None = None,
        absorbed_head: Mapping[str, Tensor] | None = None,
        notes: Sequence[str] = (),
        cost: Cost | Callable[[Tuning], Cost] | None = None,
        growth: Growth | None = None,
        shares_head: bool = False,
    ) -> None:
        """Replace the head, gate the parameters, save the statistics; all in place on `model`.

        Args:
            new_head: the new head.
            frozen: parameter or buffer -> mask; the head's are ignored.
            masks_source: whether `source()` masks the head by default.
            rewritten: where the model already differs from the source checkpoint.
            cost: as attribute, or what measures it.
            absorbed_head, notes, growth, shares_head: as attributes.
        """
        self.model, self.method, self.head, self.original = model, method, head, original
        self.source_head = head_of(model, head).requires_grad_(False)
        self.columns = {name.removeprefix(f"{head}."): mask for name, mask in columns.items()}
        self.statistics = snapshot(model)
        self.masks_source = masks_source
        self.rewritten = dict(rewritten or {})
        self._penalty = penalty
        self.absorbed_head = dict(absorbed_head or {})
        self.notes = tuple(notes)
        self.growth, self.shares_head = growth, shares_head
        self.active_adapter = "default"
        self._adapters: dict[str, Adapter] = {}
        put_head(model, head, new_head)
        self.frozen = {
            name: mask
            for name, mask in frozen.items()
            if name.endswith("running_mean") and not in_head(name, head)
        }
        self._gates: dict[str, Gate] = {}
        for name, parameter in model.named_parameters():
            if in_head(name, head):
                parameter.requires_grad_(True)
                continue
            mask = frozen[name]
            self.frozen[name] = mask
            parameter.requires_grad_(not bool(mask.all()))
            if bool(mask.any()):
                self._gates[name] = Gate(parameter, mask)
        model.register_forward_pre_hook(InputSize(), with_kwargs=True)
        self.holds_statistics = freeze_statistics
        if freeze_statistics:
            hold(model, frozen, head)
        self.cost: Cost | None = cost(self) if callable(cost) else cost

    def penalty(self) -> Tensor:
        """The method's penalty on the loss: 0 for DEFT, full, head-only and BN-tuning."""
        if self._penalty is None:
            return torch.zeros((), device=next(self.model.parameters()).device)
        return self._penalty()

    def set_penalty(self, penalty: Penalty | None) -> None:
        """Set what `penalty()` returns."""
        self._penalty = penalty

    def source(self, *, masked: bool | None = None) -> AbstractContextManager[nn.Module]:
        """Evaluate the source task: its head, its BN statistics, without slack. All is undone at the end.

        If the head's weights for slack are zero, nothing reads slack, and it is zero inside: the source
        task's outputs are unchanged even if training has diverged.

        A network that was widened is cut to the source model's size again: what is yielded is then a copy.

        Args:
            masked: whether the source head's weights for slack are zero; by default under DEFT only.
                After `prepare(sever="absorb")` its other weights and its bias compensate.

        Example:
            >>> import torch, hope
            >>> net = torch.nn.Sequential(
            ...     torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3)
            ... )
            >>> part = hope.deft.partition(net, torch.zeros(2, 4), percentile=20)
            >>> tuning = hope.deft.prepare(net, part, head=2)
            >>> with tuning.source() as model:
            ...     tuple(model(torch.zeros(5, 4)).shape)
            (5, 3)
            >>> tuple(tuning.model(torch.zeros(5, 4)).shape)
            (5, 2)
        """
        return source(self, self.masks_source if masked is None else masked)

    def measure(self, batches: Iterable[tuple[Tensor, Tensor]]) -> Cost:
        """The source's accuracy now, in two numbers: on the masked path of `source()`, which training does
        not change, and of the network as it is, with the source's head on slack in its present state.

        Args:
            batches: labelled inputs of the source task, pairs (x, y), or of tokens and the
                next ones.

        Example:
            >>> import torch, hope
            >>> net = torch.nn.Sequential(
            ...     torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3)
            ... )
            >>> tuning = hope.deft.wrap(net, torch.zeros(2, 4), free=0.25, head=2)
            >>> found = tuning.measure([(torch.randn(64, 4), torch.randint(3, (64,)))])
            >>> found.after == found.after_as_is  # slack has learned nothing yet
            True
        """
        from hope.deft.cost import measured

        return measured(self, batches)

    def disable_adapter(self) -> AbstractContextManager[nn.Module]:
        """`source()` under the name that peft users know."""
        return self.source()

    @property
    def adapters(self) -> tuple[str, ...]:
        """The names of all adapters on this core."""
        return tuple({self.active_adapter: None, **self._adapters})

    def add_adapter(self, name: str, other: Tuning) -> None:
        """Add what another tuning on the same core has learned, under a name; `set_adapter` activates it.

        Args:
            name: a new name.
            other: from `prepare` with the same partition, or from `hope.deft.load`.

        Raises:
            CheckpointMismatch: it has another core.

        Example:
            >>> import torch, hope
            >>> net = torch.nn.Sequential(
            ...     torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3)
            ... )
            >>> part = hope.deft.partition(net, torch.zeros(2, 4), free=0.25)
            >>> tuning, other = (hope.deft.prepare(net, part, head=classes) for classes in (2, 5))
            >>> tuning.add_adapter("digits", other)
            >>> tuning.set_adapter("digits")
            >>> tuple(tuning.model(torch.zeros(2, 4)).shape), tuning.adapters
            ((2, 5), ('digits', 'default'))
        """
        if name in self.adapters:
            raise InvalidPartition(f"an adapter must have a new name, got {name!r}: give another")
        check_core(self, other, name)
        self._adapters[name] = Adapter.of(other)

    def set_adapter(self, name: str) -> None:
        """Put another adapter into `model`; the active one keeps what it has learned. Parameters stay the
        same objects, except the head's: make a new optimizer.
        """
        if not isinstance(name, str):
            raise InvalidPartition(
                f"one adapter must be active at a time, got {name!r}, since all train the same slack: give "
                f"one of {', '.join(self.adapters)}"
            )
        if name not in self.adapters:
            raise InvalidPartition(
                f"an adapter must be one of {', '.join(self.adapters)}, got {name!r}: give one of these"
            )
        if name != self.active_adapter:
            self._adapters[self.active_adapter] = Adapter.of(self)
            self._adapters.pop(name).activate(self)
            self.active_adapter = name

    def merge_and_unload(self, *, keep_source: bool = True) -> nn.Module:
        """A plain copy of `model` for the new task: nothing is frozen, and there is no way back to the
        source.

        Args:
            keep_source: refuse if the source task shares the head, and would be lost.
        """
        return merged(self, keep_source)

    def restore(self) -> None:
        """Restore the core, to the bit. Needed only after something other than an optimizer derived from
        `torch.optim.Optimizer` has changed or replaced the parameters (`load_state_dict(assign=True)`): the
        new ones are frozen, too.
        """
        now = dict(self.model.named_parameters())
        for name, gate in self._gates.items():
            if name in now:
                if gate.parameter is not now[name]:
                    now[name].requires_grad_(not gate.whole)
                    gate = self._gates[name] = Gate(now[name], gate.frozen, gate.anchor)
                gate.restore()

    def moved(self) -> list[str]:
        """The parameters with changed frozen entries: none, unless something other than an optimizer wrote
        them.
        """
        now = dict(self.model.named_parameters())
        return [name for name, gate in self._gates.items() if name not in now or gate.differs(now[name])]

    def trainable(self) -> tuple[int, int]:
        """How many entries of all parameters are trainable, and how many there are; including the head."""
        free = total = 0
        for name, parameter in self.model.named_parameters():
            total += parameter.numel()
            if name not in self.frozen:
                free += parameter.numel()
            elif parameter.requires_grad:
                free += int((~self.frozen[name]).expand(parameter.shape).sum())
        return free, total

    def __repr__(self) -> str:
        free, total = self.trainable()
        name = type(self.model).__name__
        return f"Tuning({name} by {self.method}: {free:,} of {total:,} parameters trainable)"

    def __str__(self) -> str:
        free, total = self.trainable()
        inside = sum(p.numel() for name, p in self.model.named_parameters() if in_head(name, self.head))
        new, old = (
            " ".join(str(head).split()) for head in (head_of(self.model, self.head), self.source_head)
        )
        effect = "reads core only" if self.masks_source else "is unchanged"
        head, ran = f"{self.head} is {new}", f"{old}, which {effect}"
        if not self.head:
            head, ran = "frozen, shared by both tasks", "the same head"
        lines = [
            f"{type(self.model).__name__} by {self.method}, from the source checkpoint {self.original[:12]}",
            f"trainable: {free:,} of {total:,} parameters ({free / max(total, 1):.1%}), "
            f"{inside:,} of them in the head",
            f"head: {head}",
            f"source: {ran}; `with tuning.source() as model:` runs it",
            f"running statistics of frozen channels: {'frozen' if self.holds_statistics else 'adapting'}",
        ]
        if self.cost is not None:
            lines.append(f"source after severing: {self.cost}")
        if self._penalty is not None:
            lines.append("the loss needs tuning.penalty() added to it")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def print_trainable_parameters(self) -> None:
        """Print how many entries of all parameters are trainable."""
        free, total = self.trainable()
        print(f"trainable params: {free:,} || all params: {total:,} || trainable%: {100 * free / total:.4f}")

    def save_pretrained(self, folder: str | PathLike[str]) -> Path:
        """Save the differences from the source model, as safetensors and JSON; an earlier save is replaced. A
        note says how large they are.

        Args:
            folder: the target; created if it does not exist.
        """
        from hope.deft.store import save

        return save(self, folder)

    @classmethod
    def from_pretrained(
        cls, folder: str | PathLike[str], model: nn.Module, *, head: nn.Module | None = None
    ) -> Tuning:
        """Load what `save_pretrained` wrote, on top of the source model; the model itself is not changed.

        Args:
            folder: the saved folder.
            model: the source model with its weights, which are checked by their hash.
            head: a module of the new head's kind, if the head was not built from a number of classes.
        """
        from hope.deft.store import load

        return load(folder, model, head=head)
