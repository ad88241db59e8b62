package journal

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"agentsvc/schemas/testkit"
)

// TestACallerThatLeavesVoidsNothing: callers of new work leave while their flush is on its
// way. The flush is sent once, and what is in it is written, theirs too.
func TestACallerThatLeavesVoidsNothing(t *testing.T) {
	for name, leave := range map[string]func(t *testing.T, others int) (context.Context, func()){
		"cancelled": func(t *testing.T, _ int) (context.Context, func()) { return context.WithCancel(t.Context()) },
		"past its deadline": func(t *testing.T, _ int) (context.Context, func()) {
			ctx := &lapsing{Context: t.Context(), over: make(chan struct{})}
			return ctx, func() { close(ctx.over) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newWorld(t, func(c *Config) { c.Lanes = 1 })
			run := x.begun()
			unlock := x.lock(`SELECT FROM runs WHERE id = $1 FOR UPDATE`, run.Accept.ID)
			const callers = 30
			var commits []*draft
			var leavers []func()
			errs := make([]error, callers)
			var wg, left sync.WaitGroup
			release := x.block()
			for i := range callers {
				c, ctx := x.accept(0), t.Context()
				if i%3 == 0 {
					var gone func()
					ctx, gone = leave(t, callers)
					leavers = append(leavers, gone)
					left.Add(1)
				}
				commits = append(commits, c)
				wg.Go(func() {
					errs[i] = x.w.Do(ctx, c.commit())
					if i%3 == 0 {
						left.Done()
					}
				})
			}
			held := make(chan error, 1)
			go func() { held <- x.do(advance(run, 1)) }()
			testkit.Eventually(x.t, "all are queued", func() bool { return x.queued() == callers+1 })
			pid, sent := x.w.lanes[0].conn.backend.pid, x.w.lanes[0].sent // the lane is held
			release()
			testkit.Eventually(x.t, "the flush waits for the row", func() bool {
				return x.count(`SELECT count(*) FROM pg_locks WHERE pid = $1 AND NOT granted`, pid) == 1
			})
			for _, gone := range leavers {
				gone()
			}
			left.Wait()
			unlock()
			wg.Wait()
			if err := <-held; err != nil {
				t.Errorf("accepted work: %v", err)
			}
			for i, c := range commits {
				want := error(nil)
				if i%3 == 0 {
					want = ErrUnsettled
				}
				if !errors.Is(errs[i], want) {
					t.Errorf("commit %d: %v, want %v", i, errs[i], want)
				}
				if n := x.count(`SELECT count(*) FROM runs WHERE id = $1`, c.Accept.ID); n != 1 {
					t.Errorf("commit %d has %d rows, want 1", i, n)
				}
			}
			release = x.block() // the lane is held again
			if n := x.w.lanes[0].sent - sent; n > 3 {
				t.Errorf("%d flushes were sent, want one and at most one more after its lock time-out", n-1)
			}
			release()
		})
	}
}

// lapsing is a context whose deadline comes when the test says so.
type lapsing struct {
	context.Context
	over chan struct{}
}

func (c *lapsing) Done() <-chan struct{} { return c.over }

func (c *lapsing) Err() error {
	select {
	case <-c.over:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// TestWhatIsLateIsWithdrawnBeforeItIsSent: new work whose caller's deadline has passed is
// answered and not sent. Accepted work is sent however late it is.
func TestWhatIsLateIsWithdrawnBeforeItIsSent(t *testing.T) {
	t.Parallel()
	x := newWorld(t, func(c *Config) { c.Lanes = 1 })
	release := x.block()
	errs := make([]error, 40)
	var commits []*draft
	var wg sync.WaitGroup
	soon := time.Now().Add(50 * time.Millisecond)
	for i := range errs {
		c := x.accept(0)
		c.New, c.Audit = i%4 < 2, []Audit{x.audit()}
		if i%2 == 0 {
			c.Until = soon
		}
		commits = append(commits, c)
		wg.Go(func() { errs[i] = x.do(c) })
	}
	testkit.Eventually(x.t, "all are queued", func() bool { return x.queued() == len(errs) })
	sent := x.w.lanes[0].sent // the lane is held
	testkit.Eventually(x.t, "the deadline has passed", func() bool { return time.Now().After(soon) })
	release()
	wg.Wait()
	for i, c := range commits {
		want, rows := error(nil), 1
		if i%4 == 0 {
			want, rows = ErrWithdrawn, 0
		}
		if !errors.Is(errs[i], want) || want != nil && !errors.Is(errs[i], ErrUnavailable) {
			t.Errorf("commit %d: %v, want %v", i, errs[i], want)
		}
		if n := x.count(`SELECT count(*) FROM audit_log WHERE id = $1`, c.Audit[0].ID); n != rows {
			t.Errorf("commit %d: %d rows, want %d", i, n, rows)
		}
	}
	release = x.block()
	if n := x.w.lanes[0].sent - sent; n != 2 { // and the one that holds the lane now
		t.Errorf("%d flushes were sent, want 1", n-1)
	}
	release()
}

// TestWhatFitsBeforeItsDeadline: of new work a flush has what can be written before the
// callers stop waiting, by how long the last flush took.
func TestWhatFitsBeforeItsDeadline(t *testing.T) {
	const never = time.Duration(0)
	for name, c := range map[string]struct {
		each     time.Duration
		accepted int
		left     []time.Duration // oldest first
		want     []int
	}{
		"there is time":                         {time.Millisecond, 0, []time.Duration{time.Minute, time.Minute, time.Minute}, []int{0, 1, 2}},
		"nothing is known yet":                  {0, 0, []time.Duration{time.Minute, time.Minute}, []int{0, 1}},
		"nobody has a deadline":                 {time.Hour, 0, []time.Duration{never, never, never}, []int{0, 1, 2}},
		"the oldest would be too late":          {10 * time.Second, 0, []time.Duration{15 * time.Second, 30 * time.Second, time.Minute}, []int{1}},
		"a larger flush would take too long":    {10 * time.Second, 0, []time.Duration{50 * time.Second, 50 * time.Second, 50 * time.Second}, []int{0, 1}},
		"beside accepted work":                  {10 * time.Second, 1, []time.Duration{50 * time.Second, 50 * time.Second, 50 * time.Second}, []int{0}},
		"accepted work takes all of the time":   {10 * time.Second, 4, []time.Duration{50 * time.Second, 50 * time.Second}, nil},
		"all would be too late: one finds out":  {time.Hour, 0, []time.Duration{time.Minute, time.Minute, time.Minute}, []int{2}},
		"what has no deadline is beside others": {10 * time.Second, 0, []time.Duration{never, time.Second, never}, []int{0, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLane(New(Config{}), 0)
			l.each = c.each
			for range c.accepted {
				l.accepted = append(l.accepted, newEntry(t.Context(), &Commit{}))
			}
			var fresh []*entry
			for _, left := range c.left {
				commit := &draft{New: true}
				if left != never {
					commit.Until = time.Now().Add(left)
				}
				fresh = append(fresh, newEntry(context.Background(), commit.commit()))
			}
			l.fresh = slices.Clone(fresh)
			batch, _ := l.take()
			var got []int
			for _, e := range batch[c.accepted:] {
				got = append(got, slices.Index(fresh, e))
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%v are sent, want %v", got, c.want)
			}
			if len(l.fresh)+len(got) != len(fresh) {
				t.Errorf("%d stay, want %d", len(l.fresh), len(fresh)-len(got))
			}
		})
	}
}

// timed is a world with one lane, and lasted makes the flush that block holds seem to have taken
// so long.
func timed(t *testing.T) (x *world, lasted func(time.Duration)) {
	var ends atomic.Pointer[time.Time] // what the writer's clock says once
	x = newWorld(t, func(c *Config) {
		c.Lanes = 1
		c.Now = func() time.Time {
			if at := ends.Swap(nil); at != nil {
				return *at
			}
			return time.Now()
		}
	})
	began := time.Now()
	return x, func(took time.Duration) {
		x.w.hooks.afterCommit = func(uint32) {
			x.w.hooks.afterCommit = nil
			at := began.Add(took)
			ends.Store(&at)
		}
	}
}

// TestOneSlowFlushDoesNotShutNewWorkOut: after a flush that took longer than any caller
// waits, new work is written at once.
func TestOneSlowFlushDoesNotShutNewWorkOut(t *testing.T) {
	t.Parallel()
	x, lasted := timed(t)
	release := x.block()
	errs := make([]error, 10)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { errs[i] = x.do(x.accept(0)) })
	}
	testkit.Eventually(x.t, "all are queued", func() bool { return x.queued() == len(errs) })
	lasted(time.Hour)
	release()
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			t.Errorf("commit %d: %v", i, err)
		}
	}
}

// TestAFlushThatIsDoneAgainLeavesOutWhatIsLate: the database is away for longer than the
// callers of new work wait. They are answered, and the accepted work is written.
func TestAFlushThatIsDoneAgainLeavesOutWhatIsLate(t *testing.T) {
	t.Parallel()
	x, lasted := timed(t)
	run := x.begun()
	unlock := x.lock(`SELECT FROM runs WHERE id = $1 FOR UPDATE`, run.Accept.ID)
	fresh := x.accept(0)
	fresh.Until = time.Now().Add(100 * time.Millisecond)
	flushes := 0
	x.w.setBeforeFlush(func(uint32) {
		if flushes++; flushes == 2 {
			unlock()
		}
	})
	release := x.block()
	late, held := make(chan error, 1), make(chan error, 1)
	go func() { late <- x.do(fresh) }()
	go func() { held <- x.do(advance(run, 1)) }()
	testkit.Eventually(x.t, "both are queued", func() bool { return x.queued() == 2 })
	lasted(0) // nothing is known to be late before it is sent
	release()
	// The row is locked for longer than the lane waits for a lock, and than the caller does; it is
	// free when the flush is done again.
	if err := <-late; !errors.Is(err, ErrWithdrawn) {
		t.Errorf("new work: %v", err)
	}
	if err := <-held; err != nil {
		t.Errorf("accepted work: %v", err)
	}
	if n := x.count(`SELECT count(*) FROM runs WHERE id = $1 AND version = 2`, run.Accept.ID); n != 1 {
		t.Errorf("accepted work has %d rows", n)
	}
	if n := x.count(`SELECT count(*) FROM runs WHERE id = $1`, fresh.Accept.ID); n != 0 {
		t.Errorf("withdrawn work has %d rows", n)
	}
}

// BenchmarkOverload shows what the writer does with more callers than it can serve: each
// posts again as soon as it is answered, and waits for a second at most. The
// rate is that of commits answered in time. Run it with -benchtime=1x.
func BenchmarkOverload(b *testing.B) {
	const patience, each = time.Second, 3 * time.Second
	x, _, callers := benchWorld(b, 8192)
	peak := 0.0
	for _, n := range []int{256, 512, 1024, 2048, 4096, 8192} {
		var done, withdrawn, unsettled atomic.Int64
		ctx, stop := context.WithTimeout(context.Background(), each)
		var wg sync.WaitGroup
		for _, c := range callers[:n] {
			wg.Go(func() {
				for ctx.Err() == nil {
					commit := c.path()[0]
					c.posts-- // until it is known to be written
					commit.Thread = nil
					commit.Accept.ThreadID, commit.Accept.ThreadSeq, commit.Messages = nil, nil, nil
					ctx, cancel := context.WithTimeout(context.Background(), patience)
					err := x.w.Do(ctx, commit.commit())
					cancel()
					switch {
					case err == nil:
						done.Add(1)
					case errors.Is(err, ErrUnsettled):
						unsettled.Add(1)
					case errors.Is(err, ErrUnavailable):
						withdrawn.Add(1)
					default:
						b.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		stop()
		rate := float64(done.Load()) / each.Seconds()
		peak = max(peak, rate)
		b.Logf("%5d callers: %6.0f commits/s (%.2f of the peak), %d withdrawn, %d unsettled", n, rate, rate/peak, withdrawn.Load(), unsettled.Load())
		b.ReportMetric(rate, fmt.Sprintf("commits/s-%d", n))
	}
	b.ReportMetric(0, "ns/op")
}
