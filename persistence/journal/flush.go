package journal

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"agentsvc/persistence/failpoint"
	"agentsvc/persistence/pg"
	"agentsvc/schemas/pause"
)

// verdict is how one transaction ended.
type verdict int

const (
	committed verdict = iota
	lost              // rows did not take effect: a swap missed or a key was used
	refused           // the database refuses these rows
	busy              // locks were not available
	gone              // the database is unavailable; nothing was written
	unknown           // the database is unavailable; the end of the transaction was sent
	fenced            // this process was declared dead
)

var verdictLabel = map[verdict]string{lost: "lost", refused: "refused", busy: "busy", gone: "gone", unknown: "unknown", fenced: "fenced"}

// outcome is a verdict with its reason.
type outcome struct {
	verdict verdict
	err     error
	culprit *entry // of refused: the only refused commit, if known
	missed  *entry // of lost: the commit whose statement missed, if known
	late    bool   // of gone and unknown: the time limit of a flush has passed
}

var (
	errNoRow = errors.New("a row that is updated does not exist")
	errRaces = errors.New("the rows keep changing")
	errNoEnd = errors.New("the answer does not say how the transaction ended")
)

// forgetEach is how many flushes share one deletion of their evidence.
const forgetEach = 256

// tries bounds how often a flush is sent again because of locks, or of losers that cannot
// be identified. Then it is halved.
const tries = 4

// flush writes the batch and answers each of its entries.
func (l *lane) flush(batch []*entry) {
	l.flushing <- struct{}{}
	defer func() { <-l.flushing }()
	l.patience = l.patienceFor(batch)
	l.write(batch)
}

// patienceFor returns how long a flush of the batch may take: a single commit may be much larger than
// the flushes that the writer makes of several.
func (l *lane) patienceFor(batch []*entry) time.Duration {
	bytes := 0
	for _, e := range batch {
		bytes += e.size
	}
	return l.w.cfg.patience * time.Duration(1+bytes/maxFlushBytes)
}

func (l *lane) write(batch []*entry) {
	for again, first := 0, true; ; first = false {
		if !first {
			batch = l.resume(batch)
		}
		batch = l.current(batch)
		if len(batch) == 0 {
			return
		}
		out := l.transact(batch)
		if out.verdict != committed {
			l.w.metrics.redone.WithLabelValues(verdictLabel[out.verdict]).Inc()
		}
		switch out.verdict {
		case committed:
			l.up()
			l.patience = l.patienceFor(batch)
			l.answerWritten(batch)
			return
		case fenced:
			l.w.fence()
			l.answerAll(batch, ErrFenced)
			return
		case lost:
			l.up()
			left, err := l.dropLosers(batch, out.missed)
			if err != nil {
				batch = l.await(batch, err)
				continue
			}
			if len(left) < len(batch) {
				batch = left
				continue
			}
			if again++; again < tries {
				continue
			}
			if len(batch) == 1 {
				l.answerAll(batch, fmt.Errorf("%w: %w", ErrConflict, errRaces))
				return
			}
			l.halve(batch)
			return
		case busy:
			l.up()
			// After a lock timeout the flush is halved at once, so that the other commits
			// do not wait for the lock again.
			if again++; again < tries && (len(batch) == 1 || !lockTimeout(out.err)) && pause.For(l.w.hard, minPause<<again) {
				continue
			}
			if len(batch) == 1 || l.w.hard.Err() != nil {
				l.answerAll(batch, fmt.Errorf("%w: %w", ErrUnavailable, out.err))
				return
			}
			l.halve(batch)
			return
		case refused:
			l.up()
			if out.culprit != nil {
				batch = l.leaveOut(batch, out.culprit, out.err)
				continue
			}
			if len(batch) == 1 {
				err := l.refuse(batch, out.err)
				if err == nil {
					return
				}
				batch = l.await(batch, err)
				continue
			}
			l.halve(batch)
			return
		case gone:
			batch = l.await(batch, out.err)
			if out.late && l.lessAtOnce(batch) {
				return
			}
		case unknown:
			l.broken(out.err)
			written, ok := l.settle()
			if !ok {
				l.answerAll(batch, fmt.Errorf("%w: %w", ErrUnsettled, out.err))
				return
			}
			if written {
				l.up()
				l.answerWritten(batch)
				return
			}
			if out.late && l.lessAtOnce(batch) {
				return
			}
		}
	}
}

// lessAtOnce handles a flush that took too long, so that it is not sent again unchanged: an
// event becomes a row for each endpoint that hears of it, which the limits of a flush do not
// count. It writes several commits in halves and returns true; a single commit gets twice the
// time. A database that hung looks the same, and this does no harm then.
func (l *lane) lessAtOnce(batch []*entry) bool {
	if len(batch) > 1 {
		l.halve(batch)
		return true
	}
	l.patience *= 2
	return false
}

// halve writes the halves one after the other, which keeps the order.
func (l *lane) halve(batch []*entry) {
	l.write(l.resume(batch[:len(batch)/2]))
	l.write(l.resume(batch[len(batch)/2:]))
}

// await holds the batch until the database, which err says is gone, is available. It returns
// what is left to write.
func (l *lane) await(batch []*entry, err error) []*entry {
	l.broken(err)
	l.hold(batch)
	ok := l.reconnect()
	batch = l.resume(batch)
	if !ok {
		l.answerAll(batch, fmt.Errorf("%w: %w", ErrUnavailable, errNotRunning))
		return nil
	}
	return batch
}

func (l *lane) answerWritten(batch []*entry) {
	for _, e := range batch {
		if l.w.cfg.OnEvent != nil {
			for i := range e.c.Events {
				l.w.cfg.OnEvent(e.c.Tenant, e.c.Events[i].Type)
			}
		}
		if l.w.cfg.OnCommit != nil {
			l.w.cfg.OnCommit(e.c)
		}
		l.answer(e, nil) // from here on e belongs to its caller
	}
}

// leaveOut answers the culprit, of which no row was sent, and returns the other entries.
func (l *lane) leaveOut(batch []*entry, culprit *entry, cause error) []*entry {
	kept := batch[:0]
	for _, e := range batch {
		if e != culprit {
			kept = append(kept, e)
		}
	}
	l.answer(culprit, fmt.Errorf("%w: %w", ErrRefused, cause))
	return kept
}

// transact writes the batch in one transaction. Its statements and its end are one round
// trip: an implicit transaction, which the database refuses as a whole if a row misses.
func (l *lane) transact(batch []*entry) outcome {
	ctx, cancel := context.WithTimeout(l.w.hard, l.patience)
	defer cancel()
	failpoint.Hit(pointBeforeFlush)
	start := l.w.cfg.Now()
	l.rows.reset()
	for _, e := range batch {
		l.rows.add(e)
	}
	texts, out := l.prepareTexts(ctx, batch)
	if out.verdict != committed {
		return out
	}
	if l.w.hooks.beforeFlush != nil {
		l.w.hooks.beforeFlush(l.conn.backend.pid)
	}
	l.sent++
	p := l.conn.raw.PgConn().StartPipeline(ctx)
	defer p.Close()
	out = l.send(p, texts)
	switch out.verdict {
	case committed:
		if l.w.hooks.afterCommit != nil {
			l.w.hooks.afterCommit(l.conn.backend.pid)
		}
		failpoint.Hit(pointAfterCommit)
		if l.forgets() {
			l.kept = l.sent
		}
		took := l.w.cfg.Now().Sub(start)
		l.each = took / time.Duration(len(batch))
		l.w.metrics.flushed(len(batch), took)
		l.w.inflight.flushed(len(batch), took)
		return out
	case gone, unknown:
		out.late = errors.Is(ctx.Err(), context.DeadlineExceeded)
		return out
	}
	if err := p.Close(); err != nil && l.conn.raw.IsClosed() {
		return outcome{verdict: gone, err: err}
	}
	return out // the implicit transaction has ended with the round trip
}

// text is a Statement ready to be sent.
type text struct {
	of    *entry
	name  string
	build pgx.ExtendedQueryBuilder
}

// prepareTexts prepares the Statements of the batch. If the database cannot parse one, or
// its arguments do not fit, only its commit is refused.
func (l *lane) prepareTexts(ctx context.Context, batch []*entry) ([]text, outcome) {
	var texts []text
	for _, e := range batch {
		for _, s := range e.c.Statements {
			sd, err := l.conn.prepare(ctx, s.SQL)
			if err != nil {
				out := failed(err)
				out.culprit = e
				return nil, out
			}
			texts = append(texts, text{of: e, name: sd.Name})
			if err := texts[len(texts)-1].build.Build(l.conn.raw.TypeMap(), sd, s.Args); err != nil {
				return nil, outcome{verdict: refused, err: err, culprit: e}
			}
		}
	}
	return texts, outcome{}
}

// failed returns the outcome of a transaction that err has ended: refused, busy if the same
// may succeed at once, or gone if the database is lost, shutting down or full.
func failed(err error) outcome {
	out := outcome{verdict: refused, err: err}
	var pgErr *pgconn.PgError
	switch {
	case !errors.As(err, &pgErr) || pg.IsUnavailable(err): // without an answer of the database the connection is broken
		out.verdict = gone
	case pg.IsBusy(err):
		out.verdict = busy
	case pgErr.Severity == "FATAL" || pgErr.Severity == "PANIC":
		out.verdict = gone
	}
	return out
}

// inBinary is the format of all parameters of the writer's own statements.
var inBinary = []int16{pgtype.BinaryFormatCode}

// forgets reports whether the flush also deletes the rows in flushes of earlier flushes,
// which have been answered.
func (l *lane) forgets() bool { return l.sent-l.kept >= forgetEach }

// send sends the statements and reads their results. The round trip is the transaction: once
// all is sent, an error that is no answer leaves open whether it was committed.
func (l *lane) send(p *pgconn.Pipeline, texts []text) outcome {
	lane, sent := l.uid[:], int8Param(l.sent)
	p.SendQueryPrepared(prefix+"fence", [][]byte{l.w.cfg.Member.UUID[:], lane, sent}, inBinary, nil)
	l.rows.each(func(w *Write, b *bulk) {
		prepared, params := w.statement(b)
		p.SendQueryPrepared(prepared, params, inBinary, nil)
	})
	for i := range texts {
		t := &texts[i]
		p.SendQueryPrepared(t.name, t.build.ParamValues, t.build.ParamFormats, t.build.ResultFormats)
	}
	if l.forgets() {
		p.SendQueryPrepared(prefix+"forget", [][]byte{lane, int8Param(l.kept), sent}, inBinary, nil)
	}
	if err := p.Sync(); err != nil {
		return outcome{verdict: unknown, err: err}
	}
	failpoint.Hit(pointAfterStatements)

	r := reader{p: p}
	r.next(outcome{verdict: fenced})
	beforeRows := r.err != nil
	l.rows.each(func(w *Write, b *bulk) {
		miss := w.missed
		miss.missed = b.of
		r.next(miss, w.used...)
	})
	for i := range texts {
		r.next(outcome{verdict: lost, missed: texts[i].of})
	}
	if l.forgets() {
		r.next(outcome{})
	}
	r.sync()
	switch {
	case r.err == nil && r.synced:
		return outcome{}
	case !r.refused():
		return outcome{verdict: unknown, err: r.err}
	case r.miss.verdict != committed:
		return r.miss
	case beforeRows:
		return outcome{verdict: gone, err: fmt.Errorf("fence: %w", r.err)} // no commit of any kind can be written
	}
	return failed(r.err)
}

// reader reads a pipeline's answers up to a sync, keeping the first error.
type reader struct {
	p      *pgconn.Pipeline
	err    error
	miss   outcome // set if err says that a row missed
	synced bool
}

// rowMissed reports whether err says that a row that must take effect did not: the error of
// svc_missed, or a violation of one of these constraints.
func rowMissed(err error, used []string) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && (pgErr.Code == "SVC01" || len(used) > 0 && pg.IsUnique(err, used...))
}

// refused reports whether err is an answer with which the database has rolled the
// transaction back. After FATAL it may have been committed.
func (r *reader) refused() bool {
	var pgErr *pgconn.PgError
	return errors.As(r.err, &pgErr) && pgErr.SeverityUnlocalized == "ERROR"
}

// next reads the answer to the next statement. miss is the outcome if a row of the statement
// missed: the error of svc_missed, or a violation of one of the constraints used.
func (r *reader) next(miss outcome, used ...string) {
	if r.err != nil {
		return
	}
	res, err := r.p.GetResults()
	if err == nil {
		rr, ok := res.(*pgconn.ResultReader)
		if !ok {
			r.err = fmt.Errorf("the answer to a statement is missing: %T", res)
			return
		}
		_, err = rr.Close()
	}
	if err != nil {
		r.err = err
		if rowMissed(err, used) {
			r.miss = miss
		}
	}
}

// sync reads to the end of the round trip.
func (r *reader) sync() {
	for !r.synced {
		res, err := r.p.GetResults()
		if err != nil {
			var pgErr *pgconn.PgError
			if r.err == nil {
				r.err = err
			}
			if !errors.As(err, &pgErr) {
				return // the connection is lost
			}
			continue
		}
		if res == nil {
			if r.err == nil {
				r.err = errNoEnd
			}
			return
		}
		_, r.synced = res.(*pgconn.PipelineSync)
		if rr, ok := res.(*pgconn.ResultReader); ok {
			if _, err := rr.Close(); err != nil && r.err == nil {
				r.err = err
			}
		}
	}
}

// settleTime bounds one query for the outcome of a flush or of its commits.
const settleTime = 10 * time.Second
