package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Runs that call slow tools, and nodes that stop meanwhile. The tool takes no
// idempotency_key: a call whose answer is lost is not made again, and the model hears
// UNKNOWN_OUTCOME.

const slowTool = `{"name":"slow.stamp","description":"Takes its time.","inputSchema":{"type":"object","required":["n"],"properties":{"n":{"type":"string"}},"additionalProperties":false}}`

// slow is a tool server whose calls last, and an agent that makes them.
type slow struct {
	*operated
	clerk string
	hold  atomic.Pointer[chan struct{}] // where set, calls last until it is closed

	mu    sync.Mutex // guards the fields below
	began map[string]int
	done  map[string]int
	runs  map[string]string // by name
}

func (o *operated) newSlow(t *testing.T, ctx context.Context, lasts time.Duration) *slow {
	t.Helper()
	s := &slow{operated: o, began: map[string]int{}, done: map[string]int{}, runs: map[string]string{}}
	shop := o.c.shop(t, ctx, "none", "")
	shop.set(func(h *toolHost) {
		h.tools = []string{slowTool}
		h.call = func(w http.ResponseWriter, r *http.Request, m rpc) {
			var args struct{ N string }
			_ = json.Unmarshal(m.Params.Arguments, &args)
			s.count(s.began, args.N)
			over := time.After(lasts)
			if hold := s.hold.Load(); hold != nil {
				select {
				case <-*hold:
				case <-r.Context().Done():
				}
			} else {
				select {
				case <-over:
				case <-r.Context().Done():
				}
			}
			s.count(s.done, args.N)
			rpcText(w, m, "stamped "+args.N)
		}
	})
	s.clerk = o.c.clerk(t, "simulated", nil, shop)
	return s
}

func (s *slow) count(in map[string]int, n string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	in[n]++
}

// underWay is how many calls have begun and not ended.
func (s *slow) underWay() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, began := range s.began {
		n += began - s.done[name]
	}
	return n
}

func (s *slow) begun(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.began[name]
}

// script is a run of three model turns and three calls, two of them parallel.
func script3(name string) string {
	return fmt.Sprintf("/delay 5ms\n/tokens 40\n/call slow.stamp {\"n\":\"%[1]s-a\"}\n/call slow.stamp {\"n\":\"%[1]s-b\"}\n/tokens 40\n/call slow.stamp {\"n\":\"%[1]s-c\"}\n/tokens 20\n/say done %[1]s", name)
}

// starts starts a run, as often as it takes.
func (s *slow) starts(ctx context.Context, name, input string) (string, error) {
	var started struct {
		RunID string `json:"run_id"`
	}
	err := s.c.once(ctx, "/v1/agents/"+s.clerk+"/runs", name, object{"input": input}, &started)
	if err == nil {
		s.mu.Lock()
		s.runs[name] = started.RunID
		s.mu.Unlock()
	}
	return started.RunID, err
}

// load has some clients start one run after another until it is stopped.
func (s *slow) load(ctx context.Context, clients int) (stop func()) {
	var wg sync.WaitGroup
	over := make(chan struct{})
	for i := range clients {
		wg.Go(func() {
			tick := time.NewTicker(700 * time.Millisecond)
			defer tick.Stop()
			for n := 0; ; n++ {
				name := fmt.Sprintf("r%d-%d", i, n)
				if _, err := s.starts(ctx, name, script3(name)); err != nil {
					s.t.Errorf("run %s: %v", name, err)
					return
				}
				select {
				case <-tick.C:
				case <-over:
					return
				case <-ctx.Done():
					return
				}
			}
		})
	}
	return sync.OnceFunc(func() { close(over); wg.Wait() })
}

// judge looks at every run: it has succeeded, no step of it was abandoned, and each
// of its calls was made once and answered. It says how many there were.
func (s *slow) judge(t *testing.T, ctx context.Context) int {
	t.Helper()
	s.mu.Lock()
	runs := s.runs
	s.mu.Unlock()
	bad := 0
	for name, run := range runs {
		r := s.c.poll(t, ctx, run, "succeeded")
		var why []string
		if want := "llm:succeeded tool:succeeded tool:succeeded llm:succeeded tool:succeeded llm:succeeded"; r.shape() != want {
			why = append(why, "steps "+r.shape())
		}
		for _, step := range r.Steps {
			if strings.Contains(string(step.Output), "UNKNOWN_OUTCOME") {
				why = append(why, fmt.Sprintf("step %d: %s", step.Idx, step.Output))
			}
		}
		for _, call := range []string{name + "-a", name + "-b", name + "-c"} {
			if n := s.begun(call); n != 1 {
				why = append(why, fmt.Sprintf("%s was called %d times", call, n))
			}
		}
		if len(why) > 0 {
			if bad++; bad <= 10 {
				t.Errorf("run %s %s: %s", name, run, strings.Join(why, "; "))
			}
		}
	}
	if bad > 10 {
		t.Errorf("and %d more runs", bad-10)
	}
	return len(runs)
}
