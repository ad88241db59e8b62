package testkit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"agentsvc/schemas/agent"
	"agentsvc/schemas/id"
	"agentsvc/schemas/model"
)

// said notes why a wait failed.
type said struct{ why string }

func (s *said) Helper()                           {}
func (s *said) Fatalf(format string, args ...any) { s.why = fmt.Sprintf(format, args...) }

func TestEventually(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls, from := 0, time.Now()
		Eventually(t, "the third call", func() bool { calls++; return calls == 3 })
		if took := time.Since(from); calls != 3 || took > 5*time.Millisecond {
			t.Errorf("%d calls in %v", calls, took)
		}
		var s said
		from = time.Now()
		Within(&s, time.Second, "nothing", func() bool { return false })
		if took := time.Since(from); s.why != "not within 1s: nothing" || took < time.Second || took > time.Second+5*time.Millisecond {
			t.Errorf("%q after %v", s.why, took)
		}
	})
}

// part notes what is done with it.
type part struct{ log strings.Builder }

func (p *part) Start(ctx context.Context) error { p.log.WriteString("start "); return ctx.Err() }

func (p *part) Stop(ctx context.Context) error {
	if _, limited := ctx.Deadline(); !limited {
		return errors.New("no deadline")
	}
	p.log.WriteString("stop ")
	return ctx.Err()
}

func TestAPartStopsAtTheEndOfItsTest(t *testing.T) {
	var first, second part
	t.Run("", func(t *testing.T) {
		Start(t, &first)
		t.Cleanup(func() {
			if got := first.log.String(); got != "start " {
				t.Errorf("before the end: %q", got)
			}
		})
		Start(t, &second)
	})
	for _, p := range []*part{&first, &second} {
		if got := p.log.String(); got != "start stop " {
			t.Errorf("%q", got)
		}
	}
}

func TestAHeldModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := &model.Result{}
		m := &Model{Client: func(context.Context, *model.Request, model.Sink) (*model.Result, error) { return answer, nil }}
		type reply struct {
			r   *model.Result
			err error
		}
		ask := func(ctx context.Context) chan reply {
			out := make(chan reply, 1)
			go func() {
				r, _, err := m.Stream(ctx, id.TenantID{}, agent.Model{}, nil, NoReaders{})
				out <- reply{r, err}
			}()
			synctest.Wait()
			return out
		}
		waits := func(c chan reply) bool { return len(c) == 0 }
		if got := <-ask(t.Context()); got.r != answer || got.err != nil {
			t.Errorf("not held: %+v", got)
		}
		m.Hold()
		m.Hold() // again
		ctx, cancel := context.WithCancel(t.Context())
		first, cut := ask(t.Context()), ask(ctx)
		if !waits(first) || !waits(cut) {
			t.Error("a held model answers")
		}
		cancel()
		if got := <-cut; !errors.Is(got.err, context.Canceled) || !waits(first) {
			t.Errorf("cancelled: %+v", got)
		}
		m.Release()
		m.Release()
		if got := <-first; got.r != answer || got.err != nil {
			t.Errorf("released: %+v", got)
		}
		if got := <-ask(t.Context()); got.r != answer {
			t.Errorf("after the release: %+v", got)
		}
	})
}
