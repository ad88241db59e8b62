//go:build storm

package blackbox

import (
	"context"
	"os"
	"syscall"
	"time"
)

// What only the storms do to nodes.

// pause stops the process where it is; goOn has it go on.
func (m *member) pause() {
	m.expect() // its peers may declare it dead meanwhile
	m.bed.book.event("node %s is paused", m.name)
	m.tell(syscall.SIGSTOP)
}

func (m *member) goOn() {
	m.bed.book.event("node %s goes on", m.name)
	m.tell(syscall.SIGCONT)
}

func (m *member) tell(s os.Signal) {
	m.node.mu.Lock()
	defer m.node.mu.Unlock()
	if err := m.cmd.Process.Signal(s); err != nil {
		m.t.Errorf("%v to node %s: %v", s, m.name, err)
	}
}

// part cuts the ways between two members, or makes them whole.
func (b *bed) part(x, y *member, to cut) {
	b.book.event("the way between %s and %s is %s", x.name, y.name, to)
	if b.net != nil {
		b.net.part(x.i, y.i, to)
		return
	}
	x.peers.set(y.name, to)
	y.peers.set(x.name, to)
}

// pause stops a node for longer than its lease. When the process wakes up, its peers have
// declared it dead, and it ends.
func (s *shaker) pause(ctx context.Context, m *member) {
	s.scene.t.Helper()
	s.settle(ctx)
	quiet := silence{pid: m.pid(), before: s.busy(ctx, m)}
	stop := s.disturbs()
	m.pause()
	quiet.from = time.Now().Add(s.lease)
	if !pauseFor(ctx, 2*s.lease+time.Second) {
		return
	}
	m.goOn()
	eventually(s.scene.t, ctx, "a node that was declared dead ends", func() bool { return m.pid() != quiet.pid || !m.alive() })
	quiet.to = time.Now()
	s.book.silent(quiet)
	s.settle(ctx)
	s.book.calms(stop, true)
}

// partition cuts two nodes off from each other; both reach all else.
func (s *shaker) partition(ctx context.Context, x, y *member, how cut, lasts time.Duration) {
	s.scene.t.Helper()
	s.settle(ctx)
	cut := s.disturbs()
	s.part(x, y, how)
	pauseFor(ctx, lasts)
	s.part(x, y, whole)
	s.book.calms(cut, true)
}

// loseRedis takes Redis away, with all that was in it.
func (s *shaker) loseRedis(ctx context.Context, lasts time.Duration) {
	s.book.event("Redis is killed")
	s.redis.kill()
	pauseFor(ctx, lasts)
	s.redis.start()
	s.book.event("Redis is back, empty")
}
