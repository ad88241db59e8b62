package journal

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"agentsvc/persistence/failpoint"
	"agentsvc/schemas/id"
	"agentsvc/schemas/webhook"
)

// The boundaries of a commit at which a crash test kills the process. After
// journal.after_statements the COMMIT was sent too, so the commit may exist or not.
var (
	pointBeforeFlush     = failpoint.Declare("journal.before_flush")
	pointAfterStatements = failpoint.Declare("journal.after_statements")
	pointAfterCommit     = failpoint.Declare("journal.after_commit")
)

const (
	maxLanes     = 2
	defaultQueue = 4096
	flushTimeout = 10 * time.Second
)

// Config is what a writer needs. Pool and Member are required.
type Config struct {
	Pool     *pgxpool.Pool // of the system role, with the writer's settings; each lane keeps one of its connections
	Member   id.MemberID   // this process: nothing is committed without its live row in members
	Lanes    int           // without the side lane; 0: one for two CPUs, at most 2
	Queue    int           // tickets of new work; 0: 4096
	Tables   []*Table      // of the kinds, in the order of a flush: a table comes after those that it refers to
	Log      zerolog.Logger
	Now      func() time.Time // nil: time.Now; for admission and measurements
	Metrics  *Metrics         // nil: not registered
	OnFenced func()           // called once, by a lane, when a peer has declared this process dead; must not wait for the writer
	// OnEvent is called, by a lane, for each event that was committed, so that its
	// deliveries can be sent. It must not block. nil: not called.
	OnEvent func(id.TenantID, webhook.Type)
	// OnCommit is called, by a lane, with each commit that is durable, before its caller gets the
	// answer. It must not block or keep the commit. nil: not called.
	OnCommit func(*Commit)

	patience time.Duration // time limit of a flush; 0: flushTimeout
}

// Writer is the one group-commit writer of a process.
type Writer struct {
	cfg      Config
	metrics  *Metrics
	schema   *schema
	tickets  *tickets
	inflight *inflight
	lanes    []*lane // of shards, and the side lane
	routes   *routes
	touched  touched
	basis    *basis

	hard    context.Context // ends when the context of Stop does
	cut     context.CancelFunc
	owned   sync.WaitGroup
	running atomic.Bool
	fenced  atomic.Bool

	ends chan struct{} // closed by Stop

	// hooks are the moments at which tests of this package hold lanes and cut connections.
	hooks struct{ beforeFlush, afterCommit func(pid uint32) }
}

// New returns a writer that is not started.
func New(cfg Config) *Writer {
	if cfg.Lanes <= 0 {
		// Fewer lanes have fuller flushes, which cost less for each commit. Another lane
		// pays only if there is a CPU for its backend.
		cfg.Lanes = min(max(runtime.GOMAXPROCS(0)/2, 1), maxLanes)
	}
	if cfg.Queue <= 0 {
		cfg.Queue = defaultQueue
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.patience <= 0 {
		cfg.patience = flushTimeout
	}
	if cfg.Metrics == nil {
		cfg.Metrics = NewMetrics(nil)
	}
	w := &Writer{cfg: cfg, metrics: cfg.Metrics, schema: newSchema(cfg.Tables), tickets: newTickets(cfg.Queue), inflight: newInflight(alonePerCPU*runtime.GOMAXPROCS(0), besidePerCPU*runtime.GOMAXPROCS(0), cfg.Now), basis: newBasis(), ends: make(chan struct{})}
	w.hard, w.cut = context.WithCancel(context.Background())
	for n := range cfg.Lanes + 1 {
		w.lanes = append(w.lanes, newLane(w, n))
	}
	w.routes = newRoutes(w.lanes[:cfg.Lanes], w.lanes[cfg.Lanes])
	return w
}

// Start opens the lanes. It fails if one cannot connect within ctx. A writer is started
// once.
func (w *Writer) Start(ctx context.Context) error {
	for i, l := range w.lanes {
		c, err := connect(ctx, w.cfg.Pool, w.schema.texts, backend{})
		if err != nil {
			for _, l := range w.lanes[:i] {
				l.conn.close()
			}
			return fmt.Errorf("start lane %d: %w", l.n, err)
		}
		l.conn = c
	}
	if _, err := w.lanes[0].conn.raw.Exec(ctx, queries.Get("forget_dead")); err != nil {
		for _, l := range w.lanes {
			l.conn.close()
		}
		return fmt.Errorf("delete the evidence of former processes: %w", err)
	}
	w.running.Store(true)
	for _, l := range w.lanes {
		w.owned.Go(l.loop)
	}
	w.owned.Go(w.touchLoop)
	return nil
}

// Stop refuses further commits and writes the queued ones. Commits that are not written
// when ctx ends get ErrUnavailable, or ErrUnsettled if the end of their transaction was sent.
// Stop returns when the lanes have ended.
func (w *Writer) Stop(ctx context.Context) error {
	if !w.running.CompareAndSwap(true, false) {
		return nil
	}
	for _, l := range w.lanes {
		l.stop()
	}
	close(w.ends)
	ended := make(chan struct{})
	go func() {
		w.owned.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		w.cut()
		return nil
	case <-ctx.Done():
		w.cut()
		<-ended
		return fmt.Errorf("stop the writer: %w", ctx.Err())
	}
}

// Do writes c and returns nil once it is durable. Its errors are those of this package,
// wrapped. New work that was not sent is withdrawn (ErrWithdrawn) if it would be written after
// the deadline of ctx or after c.Until, and when ctx ends. When ctx ends for accepted work, or
// for new work that was sent, the error is ErrUnsettled: the writer still writes the commit, unless its
// flush is rolled back or it is outdated by then. A caller that leaves does not affect other commits.
func (w *Writer) Do(ctx context.Context, c *Commit) error {
	if w.fenced.Load() {
		return w.count(ErrFenced)
	}
	if err := ctx.Err(); err != nil {
		return w.count(fmt.Errorf("%w: %w", ErrWithdrawn, err))
	}
	e := newEntry(ctx, c)
	if err := w.fits(e); err != nil {
		return w.count(fmt.Errorf("%w: %w", ErrRefused, err))
	}
	l := w.routes.of(c)
	if err := l.push(e); err != nil {
		w.routes.ended(c, l)
		return w.count(err)
	}
	select {
	case err := <-e.done:
		freeEntry(e)
		return w.count(err)
	case <-ctx.Done():
	}
	if l.withdraw(e) {
		return w.count(fmt.Errorf("%w: %w", ErrWithdrawn, ctx.Err()))
	}
	select {
	case err := <-e.done:
		return w.count(err)
	default:
		return w.count(fmt.Errorf("%w: %w", ErrUnsettled, ctx.Err()))
	}
}

// fits returns an error if a row of e belongs to a table that is not in Config.Tables, or
// does not fit its table.
func (w *Writer) fits(e *entry) error {
	for _, r := range e.c.Rows {
		if _, known := w.schema.places[r.Write()]; !known {
			return fmt.Errorf("%s is not among the writer's tables", r.Write().name)
		}
	}
	return e.misfit
}

func (w *Writer) count(err error) error {
	w.metrics.commits.WithLabelValues(outcomeLabel(err)).Inc()
	return err
}

// errNotRunning is returned before Start and after Stop.
var errNotRunning = errors.New("the writer does not run")

// Down returns why the writer cannot write now, nil if it can.
func (w *Writer) Down() error {
	if w.fenced.Load() {
		return ErrFenced
	}
	if !w.running.Load() {
		return fmt.Errorf("%w: %w", ErrUnavailable, errNotRunning)
	}
	for _, l := range w.lanes {
		if p := l.down.Load(); p != nil {
			return fmt.Errorf("%w: %w", ErrUnavailable, *p)
		}
	}
	return nil
}

// fence ends the writer's work permanently.
func (w *Writer) fence() {
	if w.fenced.Swap(true) {
		return
	}
	w.cfg.Log.Error().Str("member", w.cfg.Member.String()).Msg("this process was declared dead, nothing more is written")
	if w.cfg.OnFenced != nil {
		w.cfg.OnFenced()
	}
}
