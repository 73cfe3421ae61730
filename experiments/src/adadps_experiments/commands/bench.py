"""`adadps bench`: time and memory of a training step, compared with other libraries."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from adadps.cli.main import errors_as_messages, out, say


def bench(
    workload: Annotated[
        list[str] | None, typer.Option(help="Workload to measure; may be repeated. Default: all.")
    ] = None,
    contender: Annotated[
        list[str] | None, typer.Option(help="Contender to measure; may be repeated. Default: all.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Exact number of steps to time.")] = None,
    threads: Annotated[
        int | None, typer.Option(help="Number of threads. Default: all usable cores.")
    ] = None,
    processes: Annotated[
        str | None,
        typer.Option(metavar="1,2", help="Measure this many processes that train together."),
    ] = None,
    epoch: Annotated[
        bool,
        typer.Option("--epoch", help="Time whole epochs: of logreg-10k, or lstm-imdb if named."),
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write rows here, each as soon as it is measured.")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Keep the rows of the JSON file; measure what is missing."),
    ] = False,
    from_file: Annotated[
        Path | None, typer.Option("--from", help="Show the rows of this file and measure nothing.")
    ] = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Measure only the promised ratios; exit 1 if one is broken."),
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw a bar chart of the times here (png).")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print tables in Markdown.")] = False,
) -> None:
    """Time a step beside plain torch, Opacus and a microbatch loop, and compare with targets.

    Each contender runs in its own process, one after the other. Opacus is in the extra "bench".

    Workloads: logreg-10k, logreg-10k-50, logreg-1m-50, autoencoder-64, autoencoder-256,
    embedding-bag, lstm, gru, transformer, conv1d-text, cnn, bert-tiny, lora. Contenders: adadps,
    adadps-feature, adadps-dp-sgd, adadps-whitened, torch, torch-sparse, opacus-hooks, opacus-ghost,
    microbatch-loop.

    `adadps bench --check` takes a minute or two: processor time of a few pairs on one thread.
    `adadps bench --processes 1,2` has a table of its own, by default of autoencoder-256 and
    logreg-10k; each process has one thread (--threads).
    `adadps bench --epoch --workload lstm-imdb` needs the reviews of IMDB (`adadps data`).

    Example: adadps bench --workload logreg-10k --json engine.json --plot engine.png
    """
    from adadps.files import write_file
    from adadps_experiments.bench import session, sheets, targets, together
    from adadps_experiments.bench.rows import RowFile

    with errors_as_messages():
        named = (workload or [], contender or [])
        if check:
            others = (
                *named,
                steps,
                threads,
                processes,
                epoch,
                json_file,
                resume,
                from_file,
                plot,
                markdown,
            )
            session.require_alone(*others)
            verdicts = targets.check_promises(say)
            out.print(sheets.as_rich(sheets.promise_sheet(verdicts)))
            raise typer.Exit(0 if targets.all_kept(verdicts) else 1)
        if from_file:
            rows = session.stored_rows(from_file, *named)
        else:
            timing = session.timing_of(steps, threads)
            if processes is not None:
                counts = together.counts_of(processes, threads, epoch=epoch)
                shared = together.pairs_to_measure(*named)
                file = RowFile(json_file, resume=resume)
                rows = together.measure_all(shared, counts, steps, threads or 1, file, say)
            elif epoch:
                epochs = session.epochs_to_measure(*named)
                file = RowFile(json_file, resume=resume)
                rows = session.measure_epochs(epochs, timing, file, say)
            else:
                jobs = session.pairs_to_measure(*named)
                file = RowFile(json_file, resume=resume)
                rows = session.measure_all(jobs, timing, file, say)
        if plot:
            write_file(plot, sheets.draw_chart(rows))
        if markdown:
            sys.stdout.write(sheets.as_markdown(sheets.sheets_of(rows)))
        else:
            for sheet in sheets.sheets_of(rows):
                out.print(sheets.as_rich(sheet))
