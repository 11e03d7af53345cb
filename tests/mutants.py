"""Does a fault in the code fail a test of `make test`? Plants one-line faults, one at a time, and runs them.

    python tests/mutants.py                 # all of them, about an hour on one core
    python tests/mutants.py --part 0/2      # every second one: another checkout takes the rest
    python tests/mutants.py --only memories # those in files whose path has this word

Works in this checkout, which must have no uncommitted change, and puts every file back. Runs the tests of the module
first, then those of the area, then all others, and stops at the first failure, which counts if the same tests pass
without the fault. Prints which faults no test found, and for each file how many of its faults were caught; ends with 1
if more than one in twenty were not. pytest does not collect this file.
"""

import argparse
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))

from tests.support.where_tested import where_tested  # noqa: E402

LEAST = 0.95
"""The share of faults that tests have to find."""
AREA_S, ALL_S = 900.0, 5400.0
"""A run that takes longer hangs: tests of an area take 3 minutes on one core, all of them 25."""


@dataclass(frozen=True)
class Fault:
    """The only place in `file` (below gradwire/) that reads `old` reads `new` instead."""

    file: str
    old: str
    new: str

    def planted(self) -> str:
        """The file's text with the fault."""
        return (ROOT / "gradwire" / self.file).read_text().replace(self.old, self.new)

    def __str__(self) -> str:
        return f"{self.file}: {self.old.strip()}  ->  {self.new.strip()}"


AREAS = {
    "compressors": ["laws", "oracles", "sparsifiers", "low_rank", "chunked", "quantized", "multi_level", "schedules",
                    "dct_top_k", "demo", "dion"],
    "communicators": ["laws_collectives", "laws", "oracles", "partial", "chunked"],
    "wire": ["wire", "laws_collectives"],
    "collective": ["wire", "laws_collectives"],
    "groups": ["plan", "partial"],
    "lab": ["played", "report", "recipe", "suites"],
    "memories": ["skipped", "laws", "oracles", "checkpoint"],
    "ops": ["select", "entries", "mean", "finite", "checksum", "native", "native_entries", "native_products",
            "low_rank", "sparsifiers", "rounding", "laws", "triton", "cuda_lane"],
    "runtime": ["machine", "exchange", "runtime", "elastic", "monitor", "checkpoint", "trace", "laws", "failures",
                "recordings", "row_exchange", "skipped", "lost_steps", "state_buffers", "flags",
                "float_residuals"],
    "rules": ["rules"],
    "script": ["machine"],
    "checkpoint": ["checkpoint", "elastic", "resume"],
    "state_description": ["checkpoint"],
    "schedule": ["schedule", "schedule_profile", "simulate", "progress", "schedules"],
    "controllers": ["controllers", "gravac", "cat", "lgreco", "schedules"],
    "transports": ["laws", "connections", "monitor", "runtime"],
    "plans": ["plan", "partial", "cli"],
    "frontends": ["front_ends", "attach", "fragments", "sharded", "lost_steps", "local_steps_state"],
    "integrations": ["quorum_exchange", "integrations"],
    "tuner": ["watch", "pairs", "trials", "schedule_profile", "progress", "auto"],
    "report": ["report", "timeline_report", "played", "pages"],
    "launched": ["launch", "gpus_of_ranks"],
}  # fmt: skip
"""The test files that run first for each package or module."""

FAULTS = [
    # compressors
    Fault("compressors/sparse.py", "return max(1, int(n * self.ratio))", "return max(1, int(n * self.ratio) + 1)"),
    Fault("compressors/sparse.py", "edges[:-1], edges.diff()", "edges[1:], edges.diff()"),
    Fault("compressors/sparse.py", "            values.mul_(sizes)\n", "            values.mul_(sizes + 1)\n"),
    Fault("compressors/sparse.py", "        x.index_fill_(-1, indices, 0)\n", ""),
    Fault("compressors/sparse.py", ".draws(k, context.shared_seed()", ".draws(k, context.own_seed()"),
    Fault("compressors/sign.py", "(context.rank + context.step) % 2 == 0", "True"),
    Fault("compressors/sign.py", "            votes.sign_()\n", ""),
    Fault("compressors/sign.py", "x, self.momentum, 1 - self.momentum)", "x, self.momentum, self.momentum)"),
    Fault("compressors/dense.py", "self.largest / parts.context.world if", "self.largest if"),
    Fault("compressors/chunked.py", "values.mul_(1 - 2 * signs)", "values.mul_(2 * signs - 1)"),
    Fault("compressors/chunked.py", ".mul_(places < n)", ""),
    Fault("compressors/chunked.py", "x.scatter_add_(1, places, values.neg_())", "x.scatter_add_(1, places, values)"),
    Fault("compressors/compressor.py", "sums.mul_(context.world).div_(", "sums.div_("),
    Fault("compressors/dct_top_k.py", "        self.weigh_by_senders(sums, rows, context)\n", "        pass\n"),
    Fault("ops/dct.py", "_rotate(each, flat, spare, left.T, right)", "_rotate(each, flat, spare, left, right)"),
    Fault("ops/dct.py", "        matrix[0] /= 2**0.5\n", ""),
    Fault("ops/reference/slicing.py", "    x.index_fill_(0, elements, 0)\n", ""),
    Fault("compressors/all_dimension.py", "max(1, round(self.ratio * length))", "max(1, int(self.ratio * length))"),
    Fault("compressors/low_rank.py", "        views.ops.orthogonalize(p.sums)\n", ""),
    Fault("compressors/power_sgd.py", "views.subtract(p.sums, q.sent)", "views.subtract(p.sums, q.sums)"),
    Fault("compressors/dion.py", "            scale_each(q.sent, 1 - self.mu)\n", ""),
    Fault("compressors/dion.py", "dtype=torch.float64", "dtype=torch.float32"),
    Fault("compressors/low_rank.py", "            self._sent.sub_(self._factors)\n", "            pass\n"),
    Fault("compressors/low_rank.py", "            zero_each(dense)\n", "            pass\n"),
    Fault("compressors/acp_sgd.py", "even = context.step % 2 == 0", "even = context.step % 2 == 1"),
    Fault("compressors/acp_sgd.py", "(basis.sums, factors.sent)", "(basis.sums, factors.sums)"),
    Fault("compressors/interleaved.py", "step % self.period == self.period - 1", "step % self.period == 0"),
    Fault("compressors/reused.py", "age + 1]", "age]"),
    Fault("compressors/reused.py", "-1 - (change > 2)", "-1 + (change > 2)"),
    Fault("compressors/multi_level.py", "least = self.min_share * whole", "least = whole"),
    Fault("compressors/multi_level.py", "ratio=codec.ratio / self.further", "ratio=codec.ratio"),
    Fault("compressors/sidco.py", "1 / (self.stages - stage)", "1 / self.stages"),
    Fault("compressors/factor_codec.py", "payloads[i:j, ..., byte:]", "payloads[i:j]"),
    Fault("compressors/context.py", "self.rank + 1", "1"),
    Fault("compressors/context.py", "value.isfinite().all()", "True"),
    # communicators
    Fault("communicators/scatter_reduce.py", "                x[a:b].add_(total)\n",
          "                pass\n"),
    Fault("communicators/scatter_reduce.py", "min(n, rank * size) for rank in range(world + 1)",
          "rank * size for rank in range(world + 1)"),
    Fault("communicators/split_gather.py", "            x[a:b].add_(total[: b - a])\n", "            pass\n"),
    Fault("communicators/split_gather.py", "            total.zero_()\n", ""),
    Fault("communicators/exclusive.py", "parts[(rank + context.step) % context.world]", "parts[rank]"),
    Fault("communicators/leader_indices.py", "leader = context.step % context.world", "leader = 0"),
    Fault("communicators/global_top_k.py", "vector.total().index_add_(0, *dropped)", "pass"),
    Fault("communicators/global_top_k.py", "sums.index_fill_(0, best, 0)", "sums"),
    Fault("communicators/ok_topk.py", ".sub_(out[a:b])", ""),
    Fault("communicators/ok_topk.py", "values.mul_(magnitude >= level)", "values.mul_(magnitude > level)"),
    Fault("wire.py", "return Wire(2 * (world - 1), 2 * (world - 1) * nbytes // world)",
          "return Wire(2 * (world - 1), (world - 1) * nbytes // world)"),
    # memories
    Fault("memories/residual.py", "gradient.onto(*flat[RESIDUAL], self.decay)", "gradient.onto(*flat[RESIDUAL], 1.0)"),
    Fault("memories/residual.py", "self.limit * old / new", "self.limit * new / old"),
    Fault("memories/dgc.py", "backend_for(velocity).mask_zeros(velocity, flat[RESIDUAL].write)", "pass"),
    Fault("memories/dgc.py", "self.clip / (ranks * sqrt(ranks))", "self.clip / ranks"),
    Fault("memories/dgc.py", "gradient.onto(*velocity, self.momentum)", "gradient.onto(*velocity)"),
    # ops: what all devices share
    Fault("ops/ranges.py", "sent[0], alpha=-1)", "sent[0])"),
    Fault("ops/reference/masking.py", "other[start:end].ne(0)", "other[start:end].eq(0)"),
    Fault("ops/lazy_sum.py", "        self.decay = 1.0\n", ""),
    Fault("ops/lazy_sum.py", "self.nonfinite.fill_(torch.nan)", "self.nonfinite.fill_(0)"),
    Fault("ops/ranges.py", "min(most, ceil(slack * k / world))", "min(most, int(slack * k / world))"),
    Fault("ops/ranges.py", "origin = start if relative else 0", "origin = 0"),
    Fault("ops/threshold.py", "len(found[0]) >= LEAST * k", "True"),
    Fault("ops/matrices.py", "gap == last.stride or", "True or"),
    Fault("ops/host.py", "tensor.pin_memory().to(device, non_blocking=True)", "tensor.pin_memory().to(device)"),
    Fault("ops/host.py", "pinned.copy_(tensor, non_blocking=True)", "pinned.copy_(tensor)"),
    # ops: reference
    Fault("ops/reference/largest.py", "chosen = magnitude > kth", "chosen = magnitude >= kth"),
    Fault("ops/reference/largest.py", "slack * rank**0.5 + slack", "-slack * rank**0.5"),
    Fault("ops/reference/adding.py", "part.add_(old * decay)", "part.add_(old)"),
    Fault("ops/reference/entries.py", "level + 8 * (values < 0)", "level"),
    Fault("ops/reference/entries.py", "exponents[:7] + 0.5", "exponents[:7] + 0.75"),
    Fault("ops/reference/elias_fano.py", "(places - ranks[0, :m] << layout.low_bits)", "(places << layout.low_bits)"),
    Fault("ops/reference/factors.py", "factor.addcmul_(other, is_zero).mul_(scale)", "factor.mul_(scale)"),
    Fault("ops/reference/bits.py", "bitorder=\"little\"", "bitorder=\"big\""),
    Fault("ops/reference/levels.py", "return most / top", "return most / code.top"),
    Fault("ops/reference/decoding.py", "(part.add_ if rank else part.copy_)(values)", "part.copy_(values)"),
    Fault("ops/reference/products.py", "from_.baddbmm_(left, right, alpha=-1)", "from_.baddbmm_(left, right)"),
    Fault("ops/reference/grid.py", "grid.gather(rows.sub_(sent), x)", "grid.gather(rows, x)"),
    Fault("ops/reference/row_top_k.py", "chosen -= np.arange(rows)[:, None] * length", "chosen -= length"),
    # ops: native
    Fault("ops/native/products.py", '_right("q", right, shape), subtract)', '_right("q", right, shape), not subtract)'),
    Fault("ops/native/selecting.py", "range(0, columns, step)", "range(0, columns - 1, step)"),
    # ops: Triton, in its interpreter
    Fault("ops/triton/factors.py", "source = before if size == 0 else factors", "source = factors"),
    Fault("ops/triton/codes.py", "sent = tl.where(x >= 0, high[:, None], low[:, None])", "sent = high[:, None]"),
    Fault("ops/triton/codes.py", "tl.maximum(width - others, 1)", "tl.maximum(width, 1)"),
    # runtime
    Fault("runtime/state/state_buffers.py", "self._buffer.current[self._first : self._last] = bytes([1 - half])",
          "self._buffer.current[self._first : self._last] = bytes([half])"),
    Fault("runtime/state/state_buffers.py",
          "bytearray(buffer.used[before.of[slot]] if slot in before.of else 0 for slot in now.order)", "buffer.used"),
    Fault("runtime/state/state_buffers.py", "                buffer.current[place] = half\n", ""),
    Fault("runtime/exchanges/recordings.py", ", *exchange.stored.sides,", ","),
    Fault("runtime/exchanges/recordings.py", "        exchange.context.slots.written(*recorded.staged)\n", ""),
    Fault("runtime/state/store.py", "            stored.slot_state.load(", "            print("),
    Fault("runtime/state/store.py", "            part.close()\n", "            pass\n"),
    Fault("runtime/state/store.py", "        self._write_back()\n        before", "        before"),
    Fault("runtime/state/store.py", "            before.forget_views()\n", ""),
    Fault("runtime/state/stored_group.py", "        self.slot_state.forget()\n", ""),
    Fault("runtime/state/store.py", "self._slot_tensors[i], self._group_tensors[i] = {}, {}", "pass"),
    Fault("runtime/state/states.py", "            self._steps.close()\n", ""),
    Fault("runtime/state/stored_group.py",
          "self.parts[RESIDUAL].commit(used=not whole)", "self.parts[RESIDUAL].commit(used=False)"),
    Fault("runtime/state/store.py", "            self._buffers.clear(kind, i)\n", "            pass\n"),
    Fault("runtime/exchanges/replica_exchange.py",
          "        x.add_(old if given.scale is None else old * given.scale)\n", ""),
    Fault("runtime/exchanges/replica_exchange.py", "[slot].copy_(own)\n", "[slot]\n"),
    Fault("runtime/exchanges/host_exchange.py", "yield Sum(Message.plain(whole), HOST)", "yield None"),
    Fault("runtime/exchanges/replica_exchange.py", "        if self.rounds_residual:\n", "        if False:\n"),
    Fault("runtime/exchanges/group_input.py", "return part if self.scale is None else", "return part if True else"),
    Fault("communicators/flags.py", "nonfinite.add_(flags.view(1))", "nonfinite.copy_(flags.view(1))"),
    Fault("runtime/exchanges/replica_exchange.py",
          "            self.nonfinite.add_(nonfinite)\n", "            pass\n"),
    Fault("runtime/exchanges/replica_exchange.py", "            self.nonfinite.zero_()\n", "            pass\n"),
    Fault("runtime/exchanges/exchange.py", "            after.copy_(before)\n", "            pass\n"),
    Fault("runtime/steps/steps.py", "            self.number += 1\n            if", "            if"),
    Fault("runtime/worker/executor.py", "(self._host_flag, non_blocking=True)", "(self._host_flag)"),
    Fault("runtime/steps/used_slots.py", "used.clamp_(max=1)", "used.clamp_(min=1)"),
    Fault("runtime/exchanges/exchange.py", "        self.input.gradients.poison()\n", "        pass\n"),
    Fault("runtime/exchanges/row_exchange.py", "_times(rows, given.part(self._world))", "_times(rows, 1.0)"),
    Fault("runtime/exchanges/row_exchange.py", "rows.sum(dtype=torch.float32) * 0", "0"),
    Fault("runtime/exchanges/row_exchange.py", "[*counts, given.given_up]", "[*counts, False]"),
    Fault("rules.py", "return value < limit if", "return value <= limit if"),
    Fault("runtime/steps/steps.py", "            if self.stopped and not last:\n", "            if False:\n"),
    Fault("frontends/owners.py", "    register_optimizer_step_pre_hook(_before_step)\n", "    pass\n"),
    Fault("runtime/steps/steps.py", "            exchange.commit() if whole else exchange.forget()",
          "            exchange.commit()"),
    Fault("runtime/steps/machine.py", "if entry.turn == 0 and entry.group", "if entry.turn > 0 and entry.group"),
    Fault("runtime/steps/machine.py", "        self._complete.clear()\n", ""),
    Fault("runtime/steps/steps.py", "        self.control.collect()\n        self.promised = True",
          "        self.promised = True"),
    Fault("runtime/steps/steps.py", "self.voted and not self._given_up, False", "self.voted, False"),
    Fault("runtime/steps/steps.py", "                self.promised = False\n        self.current",
          "        self.current"),
    Fault("runtime/steps/steps.py", "for each in self._in_step if each.compresses]", "for each in self._in_step]"),
    Fault("runtime/steps/step_lock.py", "            self._results.finish()\n            yield", "            yield"),
    Fault("runtime/steps/step_lock.py", "                self._moment(call)\n                self._give_up()\n",
          "                self._moment(call)\n"),
    Fault("runtime/steps/gradient_collector.py", "self._holds_back = until_backward_ends", "self._holds_back = False"),
    Fault("runtime/steps/gradient_collector.py", "return bool(self._held_back) or not", "return not"),
    Fault("runtime/steps/weights.py", "        self._pipeline.sum(self._own, self._pipeline.mesh.divided)\n", ""),
    Fault("runtime/steps/weights.py", "self._sum, SAME)", "self._sum)"),
    Fault("script.py", "if len(in_flight) >= IN_FLIGHT:", "if len(in_flight) > IN_FLIGHT:"),
    # checkpoint
    Fault("checkpoint.py", "tensor[before.memories].sum(0)", "tensor[before.own]"),
    Fault("checkpoint.py", "clone(memory_format=torch.contiguous_format)", "contiguous()"),
    Fault("checkpoint.py", "else torch.zeros_like(like)", "else like"),
    Fault("checkpoint.py", "not tensors[key].isfinite().all()", "False"),
    Fault("checkpoint.py", "        if one.about.shards > 1:\n", "        if False:\n"),
    Fault("checkpoint.py", "    read.check_rows()\n", ""),
    Fault("state_description.py", "if fields[\"format\"] != FORMAT:", "if False:"),
    Fault("state_description.py", "if not (0 <= about.rank < about.ranks and", "if not (True and"),
    Fault("checkpoint.py", "if not 0 <= about.skipped <= int(step):", "if False:"),
    Fault("state_description.py", "if text.dtype != torch.uint8:", "if False:"),
    Fault("checkpoint.py", "if (kind := _kind(tensors[key])) != saved:", "if (kind := saved) != saved:"),
    Fault("state_description.py", "if own not in (None, [_digest(fields)]):", "if False:"),
    # schedule
    Fault("schedule/search.py", "option.wire(units) + option.local(elements)", "option.wire(units)"),
    Fault("schedule/search.py", "problem.around_s + max", "max"),
    Fault("schedule/timeline.py", "Span(\"wait\", start + done, end,", "Span(\"wait\", start, end,"),
    Fault("schedule/bounds.py", "self.least_s = np.maximum(self.least_s, through_s)",
          "self.least_s = np.maximum(self.least_s, 1.1 * through_s)"),
    Fault("schedule/bounds.py", "return min((least_slope(option.wire)", "return max((least_slope(option.wire)"),
    Fault("schedule/bounds.py", "least_slope(part) * factor for", "least_slope(part) for"),
    Fault("schedule/simulate.py", " or cluster.ranks <= cluster.gpus_per_host:", ":"),
    Fault("schedule/link_costs.py", "    return min(known)", "    return max(known)"),
    # controllers
    Fault("controllers/gravac.py", "throughput = gain / summary.seconds", "throughput = gain"),
    Fault("controllers/gravac.py", "            self._factors.step_back()\n", "            pass\n"),
    Fault("controllers/guard.py", "max(LOSS_RISE * abs(before), 3 * noise)", "LOSS_RISE * abs(before)"),
    Fault("controllers/accordion.py", "self._began = seen.step + 1", "self._began = seen.step"),
    Fault("controllers/warm_up.py", "(self._done - self.dense) * stages", "self._done * stages"),
    Fault("controllers/factor_search.py", "self._half() if best == before and isnan(self.compute_s) else best", "best"),
    Fault("controllers/factor_search.py", "compute_s + wire_s / factor", "compute_s + wire_s"),
    Fault("controllers/factor_search.py", "max(0.0, line.intercept)", "0.0"),
    Fault("controllers/factor_search.py", "self._half(), True", "self.index, True"),
    Fault("controllers/factor_search.py", "factor < 0.55 * self.factor", "factor < self.factor"),
    Fault("controllers/gain.py", "return sqrt(share)", "return share"),
    Fault("controllers/gravac.py", "        if not row.elements:\n            return None\n", ""),
    Fault("controllers/cat.py", "if step - seen.step <= REVISIT_STEPS]", "if seen.step > -inf]"),
    Fault("controllers/cat.py", ".step > REVISIT_STEPS:", ".step > 100 * REVISIT_STEPS:"),
    Fault("controllers/cat.py", " and wire_bytes <= TIME_DRIFT * self.wire_bytes", ""),
    Fault("controllers/lgreco.py", "* payload / sent if", "* sent / payload if"),
    Fault("controllers/lgreco.py", "        self._reported = (seen.wire_bytes, seen.wire_s)\n", ""),
    Fault("controllers/lgreco.py", "if value * scale < 1]", "]"),
    # tuner
    Fault("tuner/trials.py", "each * self.efficiencies[other] / self.efficiencies[plan]",
          "each * self.efficiencies[plan] / self.efficiencies[other]"),
    Fault("tuner/trials.py", "self.alive[::-1] if len(self.rounds) % 2 else self.alive", "self.alive"),
    Fault("tuner/trials.py", "median(self.turn[-TRIED:])", "median(self.turn)"),
    Fault("tuner/trials.py", "ratio.high < 1 and (ratio.middle < CLEARLY or not self.dense_is_left)", "ratio.high < 1"),
    Fault("tuner/trials.py", "if CLEARLY * ratio.low <= 1 and ratio.middle <= FAR", "if ratio.middle <= FAR"),
    Fault("tuner/trials.py", "(first or behind[0] <= log(FAR))", "first"),
    Fault("tuner/trials.py", " - self._change_steps * (self.before == self.order[0])", ""),
    Fault("tuner/pairs.py", "for other in logs[place:]", "for other in logs[place + 1 :]"),
    Fault("tuner/watch.py", "self.strange + 1 if drift > DRIFT else 0", "self.strange + (drift > DRIFT)"),
    Fault("tuner/watch.py", "2 * self.look_after or LOOK_AFTER", "LOOK_AFTER"),
    Fault("tuner/watch.py", "max(self.now_s / self.expected_s, self.expected_s / self.now_s)",
          "self.now_s / self.expected_s"),
    Fault("tuner/candidate_plans.py", "min(least, best.get(each.way.rule, least))", "least"),
    Fault("tuner/candidate_plans.py", "max(0.0, profile.forward_s + min(0.0, optimizer_s))", "profile.forward_s"),
    Fault("tuner/candidate_plans.py", "for group in reversed(plan.groups))", "for group in plan.groups)"),
    Fault("tuner/auto.py", " or self._phase in (\"resting\", \"profile\", *COMPARING)", ""),
    Fault("tuner/candidate_plans.py", "max(each.efficiency, best.get(each.way.rule, 0.0))", "each.efficiency"),
    Fault("tuner/auto.py", " or seen.plan != self._trials.plans[self._trials.choice]:", ":"),
    Fault("tuner/auto.py", "if self.measured and not candidate_plans.is_dense(seen.plan):", "if False:"),
    Fault("tuner/auto.py", "self.regime = Worker(profile.contention)", "self.regime = Worker()"),
    Fault("tuner/trials.py", "left = ran[1:] if self.dense_is_left and len(ran) > 1 else ran", "left = ran"),
    Fault("tuner/profiler.py", "_WIRE:].amin(1).amax(0)", "_WIRE:].amax(1).amax(0)"),
    Fault("tuner/profiler.py", "        mine[_WIRE::4] = [inf] * repeats * period\n", "        pass\n"),
    Fault("tuner/profiler.py", "if wire_s and op is not None", "if op is not None"),
    Fault("tuner/profiler.py", "(4 * sample.elements, sample.host_s / 2)", "(sample.elements, sample.host_s / 2)"),
    Fault("tuner/profiler.py", "min(each.shape) / sides[name]", "1.0"),
    Fault("tuner/profiler.py", "append(span.end_s - began)", "append(span.end_s)"),
    Fault("tuner/profiler.py", "count(STEADY)", "count(0)"),
    Fault("tuner/profiler.py", "min(way.compressor.period, MOST_STEPS)", "1"),
    # plans, groupings, bytes
    Fault("plans.py", "sent >= layout.numel // 2", "sent >= layout.numel"),
    Fault("groups.py", "                size = 4 * slot.numel\n", "                size = 0\n"),
    Fault("groups.py", "(total * ratio - filled) / (total - filled)", "(total * ratio - filled) / total"),
    Fault("rules.py", "for group in plan.groups), max)", "for group in plan.groups))"),
    Fault("collective.py", "return 2 * (world - 1) * self.message.whole.nbytes // world",
          "return 2 * self.message.whole.nbytes"),
    # what is shown
    Fault("lab/curve.py", "each.sent.ways(hosts * each.per_host, hosts)", "each.sent.ways(hosts, hosts)"),
    Fault("lab/results.py", "samples[len(samples) // 10 :]", "samples"),
    Fault("report/explain.py", "shares.wire_exposed_s >= max(", "shares.wire_s >= max("),
    Fault("report/text_table.py", "(timing.totals, 1e3 * timing.steps)", "(timing.totals, 1e3)"),
    Fault("report/pictures.py", "run.last.totals.wire_bytes / run.last.step / 1e6", "run.last.totals.wire_bytes / 1e6"),
    # integrations
    Fault("integrations/quorum_exchange.py", "step + 2 - len(states) if counts else step", "step"),
    Fault("integrations/quorum_exchange.py", "return own if last == now else memories_alone(own)", "return own"),
    Fault("integrations/quorum_exchange.py", "        if not self._has_met:\n            self._states = {}\n",
          "        self._states = {}\n"),
    Fault("integrations/quorum_exchange.py", "return without_memories(own) if own else {}", "return own or {}"),
    Fault("integrations/quorum_exchange.py",
          "            self._manager.report_error(RuntimeError(\"another rank of this replica has not healed\"))\n",
          ""),
    Fault("integrations/quorum_exchange.py", "if step <= now", "if step < now"),
    # transports
    Fault("transports/gathering.py", "    if absent and rank not in absent:\n", "    if absent:\n"),
    Fault("transports/gathering.py", "if store.add(\"here\", 1) == len(ranks):",
          "if store.add(\"here\", 1) >= len(ranks) - 1:"),
    Fault("transports/heartbeat.py", "if late or not waits or", "if not waits or"),
    Fault("transports/heartbeat.py", "beats = both - self._count", "beats = both"),
    Fault("transports/heartbeat.py", "for half in (world // 2, -(world // 2))", "for half in (world // 2,)"),
    Fault("transports/staged.py", "        copied.wait()\n", ""),
    Fault("transports/staged.py", "(op.send.whole, non_blocking=True)", "(op.send.whole)"),
    Fault("transports/staged.py", "            self._event.synchronize()\n", "            pass\n"),
    Fault("transports/staged.py", "(self.on_host.receive.whole, non_blocking=True)", "(self.on_host.receive.whole)"),
    Fault("transports/parcels.py", "stride == 0 and size > 1", "stride == 0 and size > 2"),
    Fault("transports/parcels.py", "aligned(piece.nbytes)", "piece.nbytes"),
    Fault("transports/connections.py", "                    if not _port(each) & self._served:\n",
          "                    if True:\n"),
    Fault("transports/connections.py", "            if name not in before:\n", "            if True:\n"),
    Fault("transports/mesh.py", "            if not part.check([GIVEN_UP]):\n", "            if True:\n"),
    Fault("transports/mesh.py", "{**here, axis: each.silent}", "here"),
    Fault("transports/torch_store.py", "            TorchStore._silent.add(self._store)\n", ""),
    Fault("transports/members.py", "(claims[other].steps >= 0, claims[other])", "claims[other]"),
    Fault("transports/members.py", "if place < count and place in", "if place in"),
    Fault("transports/mesh.py", "ranks.movedim(same, list(range(len(same))))", "ranks"),
    Fault("runtime/worker/executor.py", "            self._awaited.discard(result)\n", "            pass\n"),
    Fault("runtime/failures/failure_verdict.py", "if not self._ended and self", "if self"),
    Fault("transports/card.py", "max(self._free_s, self._now()) + seconds", "self._now() + seconds"),
    # the launcher's variables
    Fault("launched.py", "_PORTS_BETWEEN_STEPS * step", "step"),
    Fault("launched.py", "if gpus > 1 else 0", "if gpus > 0 else 0"),
    Fault("launched.py", "_tasks_of_step(os.environ)) > 1", "_tasks_of_step(os.environ)) >= 1"),
    Fault("launched.py", "environment.get(\"SLURM_STEP_NUM_TASKS\") or ", ""),
    # runtime: hosts, the plan in force, controllers
    Fault("runtime/exchanges/host_exchange.py",
          "            self.stored.drop_pending_residual(whole=not self.input.absent)\n",
          "            pass\n"),
    Fault("runtime/exchanges/host_exchange.py", "self._leader = index % job.mesh.leaders", "self._leader = 0"),
    Fault("runtime/exchanges/host_exchange.py", "torch.where(used > 0, after, before)", "before"),
    Fault("runtime/exchanges/host_exchange.py", "[slot]] > 0, mean, gradient))", "[slot]] < 2, mean, gradient))"),
    Fault("runtime/exchanges/host_exchange.py", "gradient.onto(given.as_sent(before), x, self._hosts)", "gradient"),
    Fault("runtime/exchanges/host_exchange.py", "                after.zero_()\n", "                pass\n"),
    Fault("runtime/exchanges/host_exchange.py", "after if name in self._state.staged else now", "now"),
    Fault("runtime/exchanges/host_exchange.py", "            part.keep(left, after, self.context.own_seed())\n",
          "            pass\n"),
    Fault("runtime/exchanges/host_exchange.py", "        self._state.written(*self._state.buffers)\n", ""),
    Fault("runtime/plan/active_plan.py", "plan = plan.only(set(plan.names) - waiting)", "plan = plan.only(plan.names)"),
    Fault("runtime/plan/active_plan.py", "            self.restore(before)\n", ""),
    Fault("runtime/plan/active_plan.py", "        self._apply(native)\n", ""),
    Fault("runtime/plan/active_plan.py", "        self._control.paused = self.follows_order\n", ""),
    Fault("runtime/plan/active_plan.py",
          "plan.native or isinstance(self._control.decided, NativeRequest)", "plan.native"),
    Fault("runtime/plan/active_plan.py", "        self._chosen = asked\n", ""),
    Fault("runtime/plan/active_plan.py",
          "read.about.order or self.order.names, read.job", "self.order.names, read.job"),
    Fault("runtime/plan/gradient_order.py",
          "        pipeline.together(partial(pipeline.mesh.share, [order], device))\n",
          ""),
    Fault("runtime/plan/active_plan.py",
          "        self._control.restart(self.trained)\n        self._install(plan)\n",
          "        self._install(plan)\n"),
    Fault("runtime/plan/controller_runner.py",
          "step + 2 + self._lag, plan, numbers[:-1]", "step + 1 + self._lag, plan, numbers[:-1]"),
    Fault("runtime/plan/controller_runner.py",
          "        change, self.decided = self.decided, None\n        self._sums.clear()\n",
          "        change, self.decided = self.decided, None\n"),
    Fault("runtime/plan/controller_runner.py",
          "if change is None or fingerprint(change) != announced:", "if change is None:"),
    Fault("runtime/plan/controller_state.py", "\"decided\": decided}", "\"decided\": None}"),
    Fault("runtime/plan/controller_runner.py",
          "self._mesh.axes.keys() - {REPLICA}", "()"),
    Fault("runtime/plan/controller_state.py", "change_to_json(replaced(plan))", "change_to_json(plan)"),
    Fault("runtime/plan/active_plan.py",
          "            job = self._control.for_these_ranks(job, own)\n", "            pass\n"),
    Fault("controllers/recompress.py",
          "        here |= {name: given for name, given in there.items() if given[1]}\n", ""),
    Fault("frontends/checkpoints/elastic_resume.py", "first.about.ranks != ranks and ", ""),
    Fault("runtime/state/store.py", "stored.parts, stored.leader_of = self._parts(stored.kinds, stored.slots), {}",
          "stored.parts = self._parts(stored.kinds, stored.slots)"),
    Fault("runtime/state/gathered_state.py", "[rank if (name, key) in its else first for", "[rank for"),
    # front ends
    Fault("frontends/local_steps/round_state.py", "        copy_by_name(fragment.last_own, kept[\"moved\"])\n", ""),
    Fault("frontends/local_steps/round_state.py", "        copy_by_name(fragments[index].sent, kept[\"sent\"])\n", ""),
    Fault("frontends/local_steps/rounds.py",
          "        self.outer.param_groups[0][\"params\"] += new\n", ""),
    Fault("frontends/local_steps/rounds.py", "1 / self.runtime.mesh.replica.world", "1 / self.runtime.mesh.averaged"),
    Fault("frontends/local_steps/fragments.py", "        new.anchors |= self.anchors\n", ""),
    Fault("frontends/local_steps/fragments.py", "                getattr(new, mine)[name].copy_(tensor)\n",
          "                pass\n"),
    Fault("frontends/local_steps/fragments.py", "self.sent[name].copy_(self.parameters[name])", "pass"),
    Fault("runtime/steps/steps.py", "self.counted if times_sent is None else times_sent", "self.counted"),
    # ops: gradients, and what calls the library
    Fault("ops/gradients.py", "tensor.storage_offset() == last.storage_offset() + last.numel()",
          "tensor.storage_offset() >= last.storage_offset() + last.numel()"),
    Fault("ops/gradients.py", "        tensor.dtype == last.dtype\n        and tensor", "        tensor"),
    Fault("ops/gradients.py", "means if scale is None else means.mul_(scale)", "means"),
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--only", default="")
    parser.add_argument("--check", action="store_true", help="only that every fault's place is there, once")
    arguments = parser.parse_args()
    first, step = map(int, arguments.part.split("/"))
    faults = [fault for fault in FAULTS[first::step] if arguments.only in fault.file]
    if lost := [fault for fault in faults if (ROOT / "gradwire" / fault.file).read_text().count(fault.old) != 1]:
        sys.exit("\n".join(["these are not in the code, or not once:", *map(str, lost)]))
    for fault in faults:  # one that is no Python would be found by any test
        compile(fault.planted(), fault.file, "exec")
    if not arguments.check:
        _try_all(faults)


def _try_all(faults: list[Fault]) -> None:
    if subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, check=True).stdout.strip():
        sys.exit("this checkout has uncommitted changes; commit them first, for files are put back with git")
    missed = []
    for number, fault in enumerate(faults, 1):
        found = _found_by(fault)
        print(f"{number}/{len(faults)}  {found or 'NOT FOUND'}  {fault}", flush=True)
        missed += [] if found else [fault]
    print(f"{len(faults) - len(missed)} of {len(faults)} found", *map(str, missed), sep="\n")
    print("\ncaught / planted, by file", *_by_file(faults, missed), sep="\n")
    sys.exit(len(missed) > (1 - LEAST) * len(faults))


def _by_file(faults: list[Fault], missed: list[Fault]) -> list[str]:
    """A line for each file: how many of its faults were caught, how many were planted."""
    planted, lost = (Counter(fault.file for fault in some) for some in (faults, missed))
    return [f"{count - lost[file]:3} / {count:<3} {file}" for file, count in planted.items()]


def _found_by(fault: Fault) -> str:
    """The first test that fails with the fault, of those that pass without it; or nothing."""
    names = AREAS.get(Path(fault.file).parts[0].removesuffix(".py"), ())
    own = _tests_of(Path(fault.file).with_suffix(""))
    area = [path for name in names for path in (ROOT / "tests").rglob(f"test_{name}.py") if path not in own]
    others = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if path not in [*own, *area]]
    for files, limit_s in ((own, AREA_S), (area, AREA_S), (others, ALL_S)):
        if (found := _with(fault, files, limit_s)) and not _without(tuple(files), limit_s):
            return found
    return ""


def _with(fault: Fault, files: list[Path], limit_s: float) -> str:
    """The first of these tests that fails with the fault, or nothing."""
    file = ROOT / "gradwire" / fault.file
    original = file.read_text()
    try:
        file.write_text(fault.planted())
        return _first_failure(files, limit_s)
    finally:
        file.write_text(original)


@cache
def _without(files: tuple[Path, ...], limit_s: float) -> str:
    """The first of these tests that fails without a fault, or nothing."""
    if failed := _first_failure(files, limit_s):
        print(f"without a fault: {failed}", flush=True)
    return failed


def _tests_of(module: Path) -> list[Path]:
    """The test files of a module: that of its name, and those that tests/README.md names."""
    named = [ROOT / test for test in where_tested().get(module, [])]
    return sorted({*named, *(ROOT / "tests").rglob(f"test_{module.name}.py")})


def _first_failure(files: Sequence[Path], limit_s: float) -> str:
    """Runs these tests until one fails; its name, or nothing where all pass."""
    if not files:
        return ""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider", "-m", "not long"]
    command += map(str, files)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return f"more than {limit_s:.0f} s"
    if done.returncode == 0:
        return ""
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return (failed or done.stdout.splitlines() or ["a crash"])[-1][:120]


if __name__ == "__main__":
    main()
