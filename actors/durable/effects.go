package durable

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"agentsvc/cluster"
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

// run performs the effect and tells its activation. What was cancelled while it
// waited does not begin, what was cancelled while it ran is not heard.
func (p *performed[S]) run() {
	defer p.cancel()
	p.begin()
	if p.ctx.Err() != nil {
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

// pool runs jobs in at most max goroutines. Further jobs wait in order.
type pool struct {
	max int

	mu      sync.Mutex // guards the fields below
	running int
	queue   []job
	head    int
	idle    chan struct{} // closed when running falls to 0; nil if no caller waits
}

type job interface{ run() }

func (p *pool) submit(j job) {
	p.mu.Lock()
	if p.running >= p.max {
		p.queue = append(p.queue, j)
		p.mu.Unlock()
		return
	}
	p.running++
	p.mu.Unlock()
	go p.work(j)
}

func (p *pool) work(j job) {
	for j != nil {
		j.run()
		j = p.next()
	}
}

// next returns the oldest waiting job. If there is none it returns nil, and the goroutine
// ends.
func (p *pool) next() job {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.head == len(p.queue) {
		p.queue, p.head = nil, 0
		if p.running--; p.running == 0 && p.idle != nil {
			close(p.idle)
			p.idle = nil
		}
		return nil
	}
	j := p.queue[p.head]
	p.queue[p.head] = nil
	if p.head++; p.head > 1024 && p.head*2 > len(p.queue) {
		p.queue, p.head = append([]job(nil), p.queue[p.head:]...), 0
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
