package journal

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"agentsvc/persistence/failpoint"
)

// verdict is how one transaction ended.
type verdict int

const (
	committed verdict = iota
	lost              // rows did not take effect: somebody lost a swap or a key
	refused           // the database will not have these rows
	busy              // locks were in the way
	gone              // no database; nothing was written
	unknown           // no database; COMMIT was under way
	fenced            // the own process is dead
	withdrawn         // somebody left new work behind before COMMIT was sent
)

var verdictLabel = map[verdict]string{lost: "lost", refused: "refused", busy: "busy", gone: "gone", unknown: "unknown", fenced: "fenced", withdrawn: "withdrawn"}

// outcome is a verdict and what it stands on.
type outcome struct {
	verdict verdict
	err     error
	culprit *entry   // of refused: this one alone, where it is known
	missed  []*entry // of lost: whose Statement missed its swap
}

var (
	errNoStep = errors.New("a step that goes on does not exist")
	errRaces  = errors.New("the rows keep changing")
)

// tries bounds how often a flush is done again because of locks or of losers
// that cannot be told; then it is halved.
const tries = 4

// flush writes batch and answers each of its entries.
func (l *lane) flush(batch []*entry) {
	clear(l.written)
	l.write(batch)
}

func (l *lane) write(batch []*entry) {
	for again := 0; len(batch) > 0; {
		out := l.transact(batch)
		if out.verdict != committed {
			l.w.metrics.redone.WithLabelValues(verdictLabel[out.verdict]).Inc()
		}
		switch out.verdict {
		case committed:
			l.up()
			l.answerWritten(batch)
			return
		case fenced:
			l.w.fence()
			answer(batch, ErrFenced)
			return
		case lost:
			l.up()
			left, err := l.dropLosers(batch, out.missed)
			if err != nil {
				l.broken(err)
				if batch = l.await(batch); batch == nil {
					return
				}
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
				answer(batch, fmt.Errorf("%w: %w", ErrConflict, errRaces))
				return
			}
			l.halve(batch)
			return
		case busy:
			l.up()
			// Who waits for a lock is looked for at once, so that the others do not.
			if again++; again < tries && (len(batch) == 1 || !lockTimeout(out.err)) && pause(l.w.hard, minPause<<again) {
				continue
			}
			if len(batch) == 1 || l.w.hard.Err() != nil {
				answer(batch, fmt.Errorf("%w: %w", ErrUnavailable, out.err))
				return
			}
			l.halve(batch)
			return
		case refused:
			l.up()
			if out.culprit != nil {
				batch = l.refuse(batch, out.culprit, out.err)
				continue
			}
			if len(batch) == 1 {
				l.refuseOrRepeat(batch, out.err)
				return
			}
			l.halve(batch)
			return
		case withdrawn:
			l.up()
			batch = l.resume(batch)
		case gone:
			l.broken(out.err)
			if batch = l.await(batch); batch == nil {
				return
			}
		case unknown:
			l.broken(out.err)
			written, ok := l.settle(batch)
			if !ok {
				answer(batch, fmt.Errorf("%w: %w", ErrUnsettled, out.err))
				return
			}
			if written {
				l.up()
				l.answerWritten(batch)
				return
			}
			batch = l.resume(batch)
		}
	}
}

// halve writes the halves one after the other, so that order stays.
func (l *lane) halve(batch []*entry) {
	l.write(batch[:len(batch)/2])
	l.write(batch[len(batch)/2:])
}

// await holds batch until there is a database; nil: nothing is left to write.
func (l *lane) await(batch []*entry) []*entry {
	l.hold(batch)
	ok := l.reconnect()
	batch = l.resume(batch)
	if !ok {
		answer(batch, fmt.Errorf("%w: %w", ErrUnavailable, errNotRunning))
		return nil
	}
	if len(batch) == 0 {
		return nil
	}
	return batch
}

func (l *lane) answerWritten(batch []*entry) {
	for _, e := range batch {
		if e.c.Idempotency != nil {
			l.written[idemKey{e.c.Tenant, e.c.Idempotency.Digest}] = e.c.Op
		}
		e.done <- nil
	}
}

func answer(batch []*entry, err error) {
	for _, e := range batch {
		e.done <- err
	}
}

// refuse answers the culprit and returns the others.
func (l *lane) refuse(batch []*entry, culprit *entry, cause error) []*entry {
	kept := batch[:0]
	for _, e := range batch {
		if e != culprit {
			kept = append(kept, e)
		}
	}
	culprit.done <- fmt.Errorf("%w: %w", ErrRefused, cause)
	return kept
}

// transact writes batch in one transaction: one round trip for everything up to
// the verdicts, one for COMMIT. Between them nothing can be in doubt: a
// connection lost before COMMIT was sent has written nothing.
func (l *lane) transact(batch []*entry) outcome {
	ctx, cancel := context.WithTimeout(l.w.hard, flushTimeout)
	defer cancel()
	failpoint.Hit(pointBeforeFlush)
	start := l.w.cfg.Now()
	l.rows.reset()
	for _, e := range batch {
		l.rows.add(e.c)
	}
	texts, out := l.prepareTexts(ctx, batch)
	if out.verdict != committed {
		return out
	}
	p := l.conn.raw.PgConn().StartPipeline(ctx)
	defer p.Close()
	out = l.send(p, texts)
	if out.verdict == committed {
		if l.w.hooks.beforeCommit != nil {
			l.w.hooks.beforeCommit(l.conn.backend.pid)
		}
		failpoint.Hit(pointAfterStatements)
		if l.leftBehind(batch) {
			out.verdict = withdrawn
		}
	}
	if out.verdict == committed {
		out = commit(p)
		if out.verdict == committed {
			if l.w.hooks.afterCommit != nil {
				l.w.hooks.afterCommit(l.conn.backend.pid)
			}
			failpoint.Hit(pointAfterCommit)
			l.w.metrics.flushed(len(batch), l.w.cfg.Now().Sub(start))
		}
		return out
	}
	if out.verdict == gone || out.verdict == unknown {
		return out
	}
	if err := p.Close(); err != nil && l.conn.raw.IsClosed() {
		return outcome{verdict: gone, err: err}
	}
	if _, err := l.conn.raw.PgConn().Exec(ctx, queries.Get("rollback")).ReadAll(); err != nil {
		return outcome{verdict: gone, err: fmt.Errorf("roll back: %w", err)}
	}
	return out
}

// leftBehind reports whether the caller of new work in batch has left: nobody
// would be told that it was accepted, so it is not.
func (l *lane) leftBehind(batch []*entry) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(batch, func(e *entry) bool { return e.c.New && e.abandoned })
}

// text is a Statement ready to be sent.
type text struct {
	of    *entry
	name  string
	swap  bool
	build pgx.ExtendedQueryBuilder
}

// prepareTexts readies the batch's Statements; one that the database cannot
// parse, or whose arguments do not fit, is its commit's fault alone.
func (l *lane) prepareTexts(ctx context.Context, batch []*entry) ([]text, outcome) {
	var texts []text
	for _, e := range batch {
		for _, s := range e.c.statements() {
			sd, err := l.conn.prepare(ctx, s.SQL)
			if err != nil {
				out := failed(err)
				out.culprit = e
				return nil, out
			}
			texts = append(texts, text{of: e, name: sd.Name, swap: s.Swap})
			if err := texts[len(texts)-1].build.Build(l.conn.raw.TypeMap(), sd, s.Args); err != nil {
				return nil, outcome{verdict: refused, err: err, culprit: e}
			}
		}
	}
	return texts, outcome{}
}

// failed is the outcome of a transaction that was not committed because of err.
func failed(err error) outcome {
	switch sortFailure(err) {
	case refusedRows:
		return outcome{verdict: refused, err: err}
	case busyRows:
		return outcome{verdict: busy, err: err}
	}
	return outcome{verdict: gone, err: err}
}

// inBinary is the format of all parameters of the writer's own statements.
var inBinary = []int16{pgtype.BinaryFormatCode}

// send sends everything before COMMIT and reads what it did.
func (l *lane) send(p *pgconn.Pipeline, texts []text) outcome {
	p.SendQueryPrepared(prefix+"begin", nil, nil, nil)
	p.SendQueryPrepared(prefix+"fence", [][]byte{l.w.cfg.Member.UUID[:]}, inBinary, inBinary)
	for _, b := range l.rows {
		if b.rows > 0 {
			p.SendQueryPrepared(prefix+b.name, b.finish(), inBinary, nil)
		}
	}
	for i := range texts {
		t := &texts[i]
		p.SendQueryPrepared(t.name, t.build.ParamValues, t.build.ParamFormats, t.build.ResultFormats)
	}
	if err := p.Sync(); err != nil {
		return outcome{verdict: gone, err: err}
	}

	r := reader{p: p}
	r.next() // begin
	if alive := r.next(); alive == 0 {
		err := r.err
		r.sync()
		if err == nil {
			return outcome{verdict: fenced}
		}
		return outcome{verdict: gone, err: fmt.Errorf("fence: %w", err)} // no commit can be written, whichever it is
	}
	out := outcome{}
	for i, b := range l.rows {
		if b.rows == 0 {
			continue
		}
		switch n := r.next(); {
		case !exact[i] || n == int64(b.rows) || out.verdict != committed:
		case i == bStepUpdate || i == bStepCall:
			out = outcome{verdict: refused, err: errNoStep}
		default:
			out = outcome{verdict: lost}
		}
	}
	for i := range texts {
		if n := r.next(); texts[i].swap && n != 1 && out.verdict != refused {
			out.verdict = lost
			out.missed = append(out.missed, texts[i].of)
		}
	}
	r.sync()
	if r.err != nil {
		return failed(r.err)
	}
	return out
}

// commit makes the transaction durable.
func commit(p *pgconn.Pipeline) outcome {
	p.SendQueryPrepared(prefix+"commit", nil, nil, nil)
	if err := p.Sync(); err != nil {
		return outcome{verdict: unknown, err: err}
	}
	r := reader{p: p}
	r.next()
	done := r.tag.String() == "COMMIT"
	r.sync()
	if done {
		return outcome{} // the answer is here, whatever became of the connection since
	}
	var pgErr *pgconn.PgError
	if errors.As(r.err, &pgErr) && pgErr.Severity == "ERROR" && r.synced {
		return failed(r.err) // rolled back, and the connection lives
	}
	return outcome{verdict: unknown, err: r.err}
}

// reader reads a pipeline's answers up to a sync, keeping the first error.
type reader struct {
	p      *pgconn.Pipeline
	tag    pgconn.CommandTag
	err    error
	synced bool
}

// next is the number of rows of the next statement; 0 after an error.
func (r *reader) next() int64 {
	if r.err != nil {
		return 0
	}
	r.tag = pgconn.CommandTag{}
	res, err := r.p.GetResults()
	if err != nil {
		r.err = err
		return 0
	}
	rr, ok := res.(*pgconn.ResultReader)
	if !ok {
		r.err = fmt.Errorf("the answer to a statement is missing: %T", res)
		return 0
	}
	r.tag, r.err = rr.Close()
	return r.tag.RowsAffected()
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

// settleTime bounds one look at what became of a flush.
const settleTime = 10 * time.Second
