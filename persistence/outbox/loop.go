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
	"agentsvc/schemas/webhook"
)

// What a Turn can end with besides success. After ErrUnavailable its results may be
// durable or not: to send them again is harmless.
var (
	// ErrFenced: this process was declared dead. Nothing more is claimed or settled.
	ErrFenced = errors.New("outbox: this process was declared dead")
	// ErrUnavailable: the caller left before there was an answer, or the outbox stops.
	ErrUnavailable = errors.New("outbox: not available")
	// ErrRefused: the Turn is not one that can be written, now or later.
	ErrRefused = errors.New("outbox: refused")
)

const (
	maxTurns       = 256 // of a flush
	maxTurnBytes   = 8 << 20
	maxFlushBytes  = 64 << 20
	maxError       = 1000 // bytes of a Result's
	minPause       = 5 * time.Millisecond
	maxPause       = 500 * time.Millisecond
	lockPause      = 20 * time.Millisecond // until a result is tried again whose row is locked
	lockedLater    = 100 * time.Millisecond
	connectTimeout = 5 * time.Second
)

// Config says who sends what from where.
type Config struct {
	Pool     *pgxpool.Pool    // of the system role; the outbox takes one connection out of it for good
	Member   id.MemberID      // the own process: nothing is claimed or settled without its living row
	Timeout  time.Duration    // of an attempt
	Backoff  time.Duration    // pause after the first failed attempt, doubled by each further one; 0: webhook.FirstPause
	Now      func() time.Time // nil: time.Now; the database's clock, as the rows' times are
	Log      zerolog.Logger
	Metrics  *Metrics // nil: counted nowhere
	OnFenced func()   // called once when this process was declared dead; must not wait for the outbox
}

// Outbox claims and settles the deliveries of a process.
type Outbox struct {
	cfg     Config
	metrics *Metrics
	wake    chan struct{} // capacity 1

	hard  context.Context // ends when Stop's patience does
	cut   context.CancelFunc
	owned sync.WaitGroup

	mu      sync.Mutex // guards the fields below, and entry.abandoned
	queue   []*entry
	running bool
	fenced  bool

	// Of the loop's goroutine alone.
	conn     *pgx.Conn
	failures int       // since the last flush that the database answered
	began    time.Time // of the last flush: no two have the same
	again    time.Time // when results are tried again whose rows were locked
}

// entry is a Turn on its way.
type entry struct {
	Turn                 // without the results that are durable
	claimed   []Attempt  // by a flush after which some results were not durable
	held      bool       // some were not: their rows are locked
	done      chan reply // capacity 1: the loop never waits for a caller
	abandoned bool       // its caller has left
}

type reply struct {
	claimed Claimed
	err     error
}

// New makes an outbox; nothing happens before Start.
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

// Start connects, and fails when that cannot be done within ctx. An outbox is
// started once.
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

// Stop takes no further Turns, writes those that are queued, and answers what it
// cannot write until ctx ends with ErrUnavailable. It returns when the loop has ended.
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

// Turn makes t's results durable and claims what t wants. It answers when both are
// durable, and waits for the database until ctx ends. t's results may be sent again
// after any error but ErrRefused; then they are not such as an attempt can have.
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

// check answers ErrRefused for what no attempt can have come to.
func check(t Turn) error {
	refuse := func(why string) error { return fmt.Errorf("%w: %s", ErrRefused, why) }
	if t.Want < 0 || t.Bytes < 0 {
		return refuse("less than nothing is wanted")
	}
	for _, r := range t.Results {
		switch {
		case r.N < 1 || r.N > webhook.Attempts:
			return refuse(fmt.Sprintf("there is no attempt %d", r.N))
		case r.Unsent:
		case !slices.Contains(lifecycle.DeliveryStatuses, r.Status):
			return refuse(fmt.Sprintf("%q is no status of a delivery", r.Status))
		case r.Status == lifecycle.DeliveryPending && (r.N == webhook.Attempts || r.NextAt.IsZero()):
			return refuse("it says that another attempt follows, and not when")
		case r.HTTPStatus < 0 || r.HTTPStatus > 999:
			return refuse(fmt.Sprintf("%d is no HTTP status", r.HTTPStatus))
		}
	}
	return nil
}

// storable is s as the database takes it: valid, without NUL, and not long.
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
		return fmt.Errorf("%w: it does not run", ErrUnavailable)
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

// leave is for a caller whose patience has ended. What was claimed for it is given
// back when it is known.
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

// answer tells e's caller how its Turn ended. Where that has left, what was claimed
// for it is given back: it was not sent.
func (o *Outbox) answer(e *entry, r reply) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !e.abandoned {
		e.done <- r
		return
	}
	o.giveBack(e.Endpoint, r.claimed.Attempts)
}

// giveBack queues unsent attempts whose caller has left; the caller holds mu.
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
		var again <-chan time.Time // none
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

// take takes the next flush's Turns out of the queue, and says how many it left. Of
// two of an endpoint the later stays, and those that have met a locked row stay until
// their time.
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

// withoutAbandoned are those of batch whose callers are there.
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

// refuseAll answers everything that is still queued when the loop ends.
func (o *Outbox) refuseAll() {
	o.mu.Lock()
	queue := o.queue
	o.queue = nil
	o.mu.Unlock()
	o.answerAll(queue, fmt.Errorf("%w: it was stopped", ErrUnavailable))
}

// fence ends the outbox's work for good.
func (o *Outbox) fence() {
	o.mu.Lock()
	was := o.fenced
	o.fenced = true
	queue := o.queue
	o.queue = nil
	o.mu.Unlock()
	o.answerAll(queue, ErrFenced)
	if was {
		return
	}
	o.cfg.Log.Error().Str("member", o.cfg.Member.String()).Msg("this process was declared dead, no deliveries are claimed")
	if o.cfg.OnFenced != nil {
		o.cfg.OnFenced()
	}
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

// reconnect tries until it has a connection, with growing pauses; false: Stop's
// patience has ended.
func (o *Outbox) reconnect() bool {
	for {
		if !pause(o.hard, min(maxPause, minPause<<min(o.failures-1, 10))) {
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
