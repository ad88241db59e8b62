package durable

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"agentsvc/cluster"
	"agentsvc/schemas/id"
)

// performed is an effect in progress, or one that has ended while the state still owes it.
type performed[S any] struct {
	k      *hosting[S]
	ref    cluster.Ref
	who    Activation
	effect Effect
	key    string
	ctx    context.Context
	cancel context.CancelFunc
	// before is closed when the effect before this one begins, begun when this one
	// does. nil where there is no neighbour.
	before, begun chan struct{}
	late          *time.Timer // of an effect that waits for a place: sends the message of Kind.Late
}

// inOrder makes effects begin one after another.
func inOrder[S any](fresh []*performed[S]) {
	for i := 1; i < len(fresh); i++ {
		begun := make(chan struct{})
		fresh[i-1].begun, fresh[i].before = begun, begun
	}
}

// begin waits until the effect before this one begins. That one was submitted to the
// pool earlier, so the wait is short.
func (p *performed[S]) begin() {
	if p.before != nil {
		<-p.before
	}
	if p.begun != nil {
		close(p.begun)
	}
}

// waits is called if there is no place yet.
func (p *performed[S]) waits() {
	if p.k.Late == nil {
		return
	}
	if by, m := p.k.Late(p.effect); m != nil {
		p.late = time.AfterFunc(by.Sub(p.who.Now()), func() { p.ref.Send(result[S]{of: p, msg: m}) })
	}
}

func (p *performed[S]) tenant() id.TenantID { return p.who.Address.Tenant }

// run performs the effect and tells its activation. An effect that was cancelled or became late
// while it waited does not begin; the result of an effect cancelled while it ran is dropped.
func (p *performed[S]) run() {
	defer p.cancel()
	p.begin()
	if p.ctx.Err() != nil || p.late != nil && !p.late.Stop() {
		return
	}
	began := time.Now()
	out := p.perform()
	p.k.metrics.effectSeconds.Observe(time.Since(began).Seconds())
	if out != nil && p.ctx.Err() == nil {
		p.ref.Send(result[S]{of: p, msg: out})
	}
}

func (p *performed[S]) perform() (out any) {
	defer func() {
		if r := recover(); r != nil {
			p.k.cfg.Log.Error().Str("kind", p.k.Name).Stringer("tenant", p.who.Address.Tenant).Stringer("id", p.who.Address.ID).
				Str("key", p.key).Interface("panic", r).Bytes("stack", debug.Stack()).Msg("effect panicked")
			out = EffectFailed{Key: p.key, Cause: fmt.Sprint(r)}
		}
	}()
	return p.k.Perform(p.ctx, p.who, p.effect)
}

// pool runs jobs in at most max goroutines, those of one tenant in at most half of them.
// Further jobs wait: those of a tenant in order, and the tenants that wait take turns, so that
// a tenant whose jobs last for days leaves places to the others.
type pool struct {
	max   int
	start func(func()) // runs a function beside its caller

	mu      sync.Mutex // guards the fields below
	running int
	lines   map[id.TenantID]*line // of tenants with jobs
	order   []*line               // those of which a job may begin when a place is free, the next one first
	idle    chan struct{}         // closed when running falls to 0; nil if no caller waits
}

// line is the jobs of one tenant.
type line struct {
	tenant  id.TenantID
	running int
	queue   []job
	head    int
	ordered bool // it is in pool.order
}

type job interface {
	tenant() id.TenantID
	waits() // before it runs, if it has to wait
	run()
}

func (p *pool) each() int { return (p.max + 1) / 2 }

func (p *pool) submit(j job) {
	p.mu.Lock()
	t := j.tenant()
	l := p.lines[t]
	if l == nil {
		if p.lines == nil {
			p.lines = map[id.TenantID]*line{}
		}
		l = &line{tenant: t}
		p.lines[t] = l
	}
	if p.running >= p.max || l.running >= p.each() {
		j.waits()
		l.queue = append(l.queue, j)
		p.enlist(l)
		p.mu.Unlock()
		return
	}
	p.running++
	l.running++
	p.mu.Unlock()
	p.start(func() { p.work(j, l) })
}

func (p *pool) work(j job, l *line) {
	for j != nil {
		j.run()
		j, l = p.next(l)
	}
}

// enlist puts a line behind the others if one of its jobs may begin.
func (p *pool) enlist(l *line) {
	if !l.ordered && l.head < len(l.queue) && l.running < p.each() {
		l.ordered = true
		p.order = append(p.order, l)
	}
}

// next returns the job that takes the place of one of line l that has ended. If there is none
// it returns nil, and the goroutine ends.
func (p *pool) next(l *line) (job, *line) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.running--
	p.enlist(l)
	if l.running == 0 && !l.ordered {
		delete(p.lines, l.tenant)
	}
	if len(p.order) == 0 {
		if p.running--; p.running == 0 && p.idle != nil {
			close(p.idle)
			p.idle = nil
		}
		return nil, nil
	}
	l = p.order[0]
	p.order = p.order[1:]
	l.ordered = false
	l.running++
	j := l.take()
	p.enlist(l)
	return j, l
}

// take removes the oldest job.
func (l *line) take() job {
	j := l.queue[l.head]
	l.queue[l.head] = nil
	if l.head++; l.head == len(l.queue) {
		l.queue, l.head = nil, 0
	} else if l.head > 1024 && l.head*2 > len(l.queue) {
		l.queue, l.head = append([]job(nil), l.queue[l.head:]...), 0
	}
	return j
}

// wait returns when no job runs, or when ctx ends.
func (p *pool) wait(ctx context.Context) error {
	p.mu.Lock()
	if p.running == 0 {
		p.mu.Unlock()
		return nil
	}
	if p.idle == nil {
		p.idle = make(chan struct{})
	}
	idle := p.idle
	p.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for effects: %w", ctx.Err())
	}
}
