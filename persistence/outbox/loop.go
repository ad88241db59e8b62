package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/pause"
	"agentsvc/schemas/webhook"
)

// Errors of a Turn. After ErrUnavailable its results may or may not be durable; sending them
// again is harmless.
var (
	// ErrFenced: this process was declared dead. It claims and settles nothing more.
	ErrFenced = errors.New("outbox: this process was declared dead")
	// ErrUnavailable: the caller left before there was an answer, or the outbox is stopping.
	ErrUnavailable = errors.New("outbox: not available")
	// ErrRefused: the Turn cannot be written, now or later.
	ErrRefused = errors.New("outbox: refused")
)

const (
	maxTurns       = 256 // of a flush
	maxTurnBytes   = 8 << 20
	maxFlushBytes  = 64 << 20
	maxError       = 1000 // bytes of a Result's
	minPause       = 5 * time.Millisecond
	maxPause       = 500 * time.Millisecond
	lockPause      = 20 * time.Millisecond // pause before a result whose row is locked is retried
	lockedLater    = 100 * time.Millisecond
	connectTimeout = 5 * time.Second
)

// Config holds the settings of an Outbox.
type Config struct {
	Pool     *pgxpool.Pool    // of the system role; the outbox takes one connection out of it for good
	Member   id.MemberID      // this process: without its live row nothing is claimed or settled
	Timeout  time.Duration    // of an attempt
	Backoff  time.Duration    // pause after the first failed attempt, doubled by each further one; 0: webhook.FirstPause
	Now      func() time.Time // nil: time.Now. It must follow the database's clock, like the rows' times
	Log      zerolog.Logger
	Metrics  *Metrics // nil: not counted
	OnFenced func()   // called once when this process was declared dead; must not wait for the outbox
	// OnChange is called for each delivery that a flush has changed. It must not block. nil: not
	// called.
	OnChange func(id.TenantID, id.DeliveryID)
}

// Outbox claims and settles the deliveries of a process.
type Outbox struct {
	cfg     Config
	metrics *Metrics
	wake    chan struct{} // capacity 1

	hard  context.Context // ends when Stop's context does
	cut   context.CancelFunc
	owned sync.WaitGroup

	mu      sync.Mutex // guards the fields below, and entry.abandoned
	queue   []*entry
	running bool
	fenced  bool

	// Used only by the loop's goroutine.
	conn     *pgx.Conn
	failures int       // since the database last answered a flush
	began    time.Time // time of the last flush: no two flushes have the same
	again    time.Time // when results whose rows were locked are retried
}

// entry is a queued Turn.
type entry struct {
	Turn                 // without the results that are already durable
	claimed   []Attempt  // claimed by a flush after which some results were not durable
	held      bool       // some results are not durable: their rows are locked
	done      chan reply // capacity 1: the loop never waits for a caller
	abandoned bool       // its caller has left
}

type reply struct {
	claimed Claimed
	err     error
}

// New returns an outbox; it does nothing before Start.
func New(cfg Config) *Outbox {
	if cfg.Backoff <= 0 {
		cfg.Backoff = webhook.FirstPause
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Metrics == nil {
		cfg.Metrics = NewMetrics(nil)
	}
	o := &Outbox{cfg: cfg, metrics: cfg.Metrics, wake: make(chan struct{}, 1)}
	o.hard, o.cut = context.WithCancel(context.Background())
	return o
}

// Start connects, and fails if it cannot within ctx. An outbox is started once.
func (o *Outbox) Start(ctx context.Context) error {
	conn, err := connect(ctx, o.cfg.Pool)
	if err != nil {
		return fmt.Errorf("start the outbox: %w", err)
	}
	o.conn = conn
	o.mu.Lock()
	o.running = true
	o.mu.Unlock()
	o.owned.Go(o.loop)
	return nil
}

// Stop refuses new Turns and writes the queued ones. When ctx ends it answers the rest with
// ErrUnavailable. It returns when the loop has ended.
func (o *Outbox) Stop(ctx context.Context) error {
	o.mu.Lock()
	was := o.running
	o.running = false
	o.mu.Unlock()
	if !was {
		return nil
	}
	o.signal()
	ended := make(chan struct{})
	go func() {
		o.owned.Wait()
		close(ended)
	}()
	defer o.cut()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		o.cut()
		<-ended
		return fmt.Errorf("stop the outbox: %w", ctx.Err())
	}
}

// Turn makes t's results durable and claims the deliveries that t wants. It returns when both
// are durable, and waits for the database until ctx ends. After any error but ErrRefused the
// results may be sent again; ErrRefused means that no attempt can have such results.
func (o *Outbox) Turn(ctx context.Context, t Turn) (Claimed, error) {
	if err := check(t); err != nil {
		return Claimed{}, err
	}
	if err := ctx.Err(); err != nil {
		return Claimed{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	t.Results = slices.Clone(t.Results)
	for i := range t.Results {
		t.Results[i].Error = storable(t.Results[i].Error)
	}
	e := &entry{Turn: t, done: make(chan reply, 1)}
	if err := o.push(e); err != nil {
		return Claimed{}, err
	}
	select {
	case r := <-e.done:
		return r.claimed, r.err
	case <-ctx.Done():
		return o.leave(e, ctx.Err())
	}
}

// check returns ErrRefused for results that no attempt can have.
func check(t Turn) error {
	refuse := func(why string) error { return fmt.Errorf("%w: %s", ErrRefused, why) }
	if t.Want < 0 || t.Bytes < 0 {
		return refuse("want must not be negative")
	}
	for _, r := range t.Results {
		switch {
		case r.N < 1 || r.N > webhook.Attempts:
			return refuse(fmt.Sprintf("there is no attempt %d", r.N))
		case r.Unsent:
		case !slices.Contains(lifecycle.DeliveryStatuses, r.Status):
			return refuse(fmt.Sprintf("%q is not a status of a delivery", r.Status))
		case r.Status == lifecycle.DeliveryPending && (r.N == webhook.Attempts || r.NextAt.IsZero()):
			return refuse("a pending result needs the time of the next attempt")
		case r.HTTPStatus < 0 || r.HTTPStatus > 999:
			return refuse(fmt.Sprintf("%d is not an HTTP status", r.HTTPStatus))
		}
	}
	return nil
}

// storable makes s acceptable to the database: valid UTF-8, without NUL, and cut to length.
func storable(s string) string {
	if len(s) > maxError {
		cut := maxError
		for cut > maxError-utf8.UTFMax && !utf8.RuneStart(s[cut]) {
			cut--
		}
		s = s[:cut]
	}
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

func (o *Outbox) push(e *entry) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.fenced:
		return ErrFenced
	case !o.running:
		return fmt.Errorf("%w: it is not running", ErrUnavailable)
	}
	o.queue = append(o.queue, e)
	o.signal()
	return nil
}

func (o *Outbox) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// leave handles a caller that no longer waits. Deliveries claimed for it are given back as
// soon as they are known.
func (o *Outbox) leave(e *entry, cause error) (Claimed, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	select {
	case r := <-e.done:
		return r.claimed, r.err
	default:
	}
	e.abandoned = true
	return Claimed{}, fmt.Errorf("%w: %w", ErrUnavailable, cause)
}

// answer replies to e's caller. If the caller has left, the deliveries claimed for it are
// given back: they were not sent.
func (o *Outbox) answer(e *entry, r reply) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !e.abandoned {
		e.done <- r
		return
	}
	o.giveBack(e.Endpoint, r.claimed.Attempts)
}

// giveBack queues unsent attempts whose caller has left. The caller of giveBack holds mu.
func (o *Outbox) giveBack(of Endpoint, unsent []Attempt) {
	if len(unsent) == 0 {
		return
	}
	e := &entry{Turn: Turn{Endpoint: of}, done: make(chan reply, 1)}
	for _, a := range unsent {
		e.Results = append(e.Results, Result{Delivery: a.Delivery, N: a.N, BegunAt: a.BegunAt, Unsent: true})
	}
	o.queue = append(o.queue, e)
	o.signal()
}

func (o *Outbox) answerAll(batch []*entry, err error) {
	for _, e := range batch {
		o.answer(e, reply{err: err})
	}
}

func (o *Outbox) loop() {
	defer func() {
		if o.conn != nil {
			hangUp(o.conn)
		}
	}()
	for {
		batch, left := o.take()
		if len(batch) > 0 {
			o.flush(batch)
			continue
		}
		var again <-chan time.Time // nil: no retry is pending
		switch {
		case left > 0:
			again = time.After(time.Until(o.again))
		case o.stopping():
			return
		}
		select {
		case <-o.wake:
		case <-again:
		case <-o.hard.Done():
			o.refuseAll()
			return
		}
	}
}

func (o *Outbox) stopping() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.running && len(o.queue) == 0
}

// take removes the next flush's Turns from the queue, and returns how many stay. Of two Turns
// of one endpoint the later stays; those that met a locked row stay until their retry time.
func (o *Outbox) take() (batch []*entry, left int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	early := time.Now().Before(o.again)
	met := map[Endpoint]bool{}
	queue := o.queue
	o.queue = nil
	for _, e := range queue {
		switch {
		case met[e.Endpoint] || len(batch) == maxTurns || e.held && early:
			o.queue = append(o.queue, e)
		default:
			batch = append(batch, e)
		}
		met[e.Endpoint] = true
	}
	return batch, len(o.queue)
}

// putBack queues entries again whose results could not all be written.
func (o *Outbox) putBack(held []*entry) {
	if len(held) == 0 {
		return
	}
	o.again = time.Now().Add(lockPause)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.queue = append(held, o.queue...)
}

// withoutAbandoned returns the entries of batch whose callers still wait.
func (o *Outbox) withoutAbandoned(batch []*entry) []*entry {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.DeleteFunc(batch, func(e *entry) bool {
		if e.abandoned {
			o.giveBack(e.Endpoint, e.claimed)
		}
		return e.abandoned
	})
}

// refuseAll answers everything still queued when the loop ends.
func (o *Outbox) refuseAll() {
	o.mu.Lock()
	queue := o.queue
	o.queue = nil
	o.mu.Unlock()
	o.answerAll(queue, fmt.Errorf("%w: it was stopped", ErrUnavailable))
}

// fence ends the outbox's work permanently. OnFenced is called before any caller is told.
func (o *Outbox) fence() {
	o.mu.Lock()
	was := o.fenced
	o.fenced = true
	queue := o.queue
	o.queue = nil
	o.mu.Unlock()
	if !was {
		o.cfg.Log.Error().Str("member", o.cfg.Member.String()).Msg("this process was declared dead and claims no more deliveries")
		if o.cfg.OnFenced != nil {
			o.cfg.OnFenced()
		}
	}
	o.answerAll(queue, ErrFenced)
}

// broken drops the connection.
func (o *Outbox) broken(err error) {
	if o.failures++; o.failures == 1 {
		o.metrics.down.Set(1)
		o.cfg.Log.Warn().Err(err).Msg("storage is not available, deliveries wait")
	}
	if o.conn != nil {
		hangUp(o.conn)
		o.conn = nil
	}
}

// up is called when the database has answered a flush.
func (o *Outbox) up() {
	if o.failures > 0 {
		o.failures = 0
		o.metrics.down.Set(0)
		o.cfg.Log.Info().Msg("storage is available again, deliveries go on")
	}
}

// reconnect retries with growing pauses until it has a connection; false means that Stop's
// context has ended.
func (o *Outbox) reconnect() bool {
	for {
		if !pause.For(o.hard, min(maxPause, minPause<<min(o.failures-1, 10))) {
			return false
		}
		ctx, cancel := context.WithTimeout(o.hard, connectTimeout)
		conn, err := connect(ctx, o.cfg.Pool)
		cancel()
		if err == nil {
			o.conn = conn
			return true
		}
		o.broken(err)
	}
}
