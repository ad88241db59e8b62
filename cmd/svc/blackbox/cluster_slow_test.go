package blackbox

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// Runs that call slow tools, and nodes that stop meanwhile. The tool takes no
// idempotency_key: a call whose answer is lost is not made again, and the model hears
// UNKNOWN_OUTCOME.

const slowTool = `{"name":"slow.stamp","description":"Takes its time.","inputSchema":{"type":"object","required":["n"],"properties":{"n":{"type":"string"}},"additionalProperties":false}}`

// slow is a tool server whose calls last, and an agent that makes them.
type slow struct {
	t     *testing.T
	c     *caller
	clerk string
	hold  atomic.Pointer[chan struct{}] // where set, calls last until it is closed

	mu    sync.Mutex // guards the fields below
	began map[string]int
	done  map[string]int
	runs  map[string]string // by name
}

func newSlow(t *testing.T, ctx context.Context, c *caller, lasts time.Duration) *slow {
	t.Helper()
	s := &slow{t: t, c: c, began: map[string]int{}, done: map[string]int{}, runs: map[string]string{}}
	shop := c.shop(t, ctx, "none", "")
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
	s.clerk = c.clerk(t, "simulated", nil, shop)
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

// script3 is a run of three model turns and three calls, two of them parallel.
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

// holds has calls last until the returned function is called.
func (s *slow) holds() (release func()) {
	hold := make(chan struct{})
	s.hold.Store(&hold)
	return sync.OnceFunc(func() { s.hold.Store(nil); close(hold) })
}

// calling waits until so many calls are under way.
func (s *slow) calling(ctx context.Context, n int) {
	s.t.Helper()
	eventually(s.t, ctx, fmt.Sprintf("%d calls are under way", n), func() bool { return s.underWay() == n })
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

// TestADrainedNodeFinishesItsCalls drains a node whose runs wait for tools and models:
// it finishes them and begins nothing, orders reach it by the new owner, readers elsewhere
// go on hearing live text, and the others go on with what it leaves.
func TestADrainedNodeFinishesItsCalls(t *testing.T) {
	o := newOperated(t, longLease)
	ctx := within(t, time.Minute)
	s := newSlow(t, ctx, o.c, time.Millisecond)
	release := s.holds()
	defer release()
	leaver := o.nodes[1]
	others := o.others(leaver)
	begins := func(m *member, name string) string {
		t.Helper()
		run, err := o.posted(o.c.do(m.on(ctx), "POST", "/v1/agents/"+s.clerk+"/runs", object{"input": script3(name)}, "Idempotency-Key", name))
		if err != nil {
			t.Fatal(err)
		}
		return run
	}
	const many = 4
	for i := range many {
		s.runs[fmt.Sprint("r", i)] = begins(leaver, fmt.Sprint("r", i))
	}
	ends := begins(leaver, "cancelled")
	s.calling(ctx, 2*(many+1))
	talks, err := o.begins(ctx, leaver, "/delay 20ms\n/tokens 1000\n/say over", "talks")
	if err != nil {
		t.Fatal(err)
	}
	heard := make(chan int, 1)
	x := &reading{run: talks}
	var drained, finished atomic.Pointer[time.Time]
	var reader sync.WaitGroup
	reader.Go(func() {
		x.follow(others[0].on(ctx), o.w)
		n, from, to := 0, drained.Load(), finished.Load()
		for i, f := range x.frames {
			if f.Type == "llm.delta" && from != nil && x.at[i].After(from.Add(time.Second)) && (to == nil || x.at[i].Before(*to)) {
				n++
			}
		}
		heard <- n
	})
	o.settles(ctx, leaver, many+2)

	if out, code := o.desk.svc("cluster", "drain", leaver.peers.addr); code != 0 {
		t.Fatalf("drain: code %d: %s", code, out)
	}
	eventually(t, ctx, "the drained node has nothing but its runs", func() bool {
		n, ok := leaver.living("run")
		return ok && n == 0 && o.listed()[leaver].Shards == 0
	})
	now := time.Now()
	drained.Store(&now)
	// The others have looked at what they have gained, twice.
	woken := sum(t, `svc_sweep_woken_total{kind="run"}`, others...)
	eventually(t, ctx, "the new owners look at its runs", func() bool { return sum(t, `svc_sweep_woken_total{kind="run"}`, others...) >= woken+many })
	if n := s.underWay(); n != 2*(many+1) {
		t.Errorf("%d calls are under way", n)
	}
	a, err := o.c.do(others[1].on(ctx), "POST", "/v1/runs/"+ends+"/cancel", nil)
	if err != nil || a.status != http.StatusOK {
		t.Fatalf("a cancel of a run that the node finishes: %v %s", err, a)
	}
	s.calling(ctx, 2*many) // its calls were cut where they are made
	if r := o.c.poll(t, others[0].on(ctx), ends, "cancelled"); r.shape() != "llm:succeeded tool:failed tool:failed" {
		t.Errorf("the cancelled run has steps %s", r.shape())
	}
	release()
	s.judge(t, ctx)
	reader.Wait()
	if n := <-heard; x.err != nil || n < 20 {
		t.Errorf("a reader elsewhere has heard %d pieces of live text, %v", n, x.err)
	}
	if r := o.c.poll(t, others[0].on(ctx), talks, "succeeded"); r.shape() != "llm:succeeded" {
		t.Errorf("the run that was read has steps %s", r.shape())
	}
	eventually(t, ctx, "the drained node has no actors", func() bool { n, ok := leaver.living(); return ok && n == 0 })
	o.book.report(t)
}

// TestANodeThatJoinsCutsNothing starts a third node while runs of two wait for tools.
func TestANodeThatJoinsCutsNothing(t *testing.T) {
	o := newOperated(t, longLease)
	ctx := within(t, time.Minute)
	joiner := o.nodes[2]
	joiner.term()
	s := newSlow(t, ctx, o.c, time.Millisecond)
	release := s.holds()
	defer release()
	const many = 24
	for i := range many {
		name := fmt.Sprint("r", i)
		if _, err := s.starts(ctx, name, script3(name)); err != nil {
			t.Fatal(err)
		}
	}
	s.calling(ctx, 2*many)
	joiner.back(ctx)
	eventually(t, ctx, "it has shards", func() bool {
		return o.listed()[joiner].Shards > 0 && sum(t, `svc_sweep_woken_total{kind="run"}`, joiner) > 0
	})
	if n := s.underWay(); n != 2*many {
		t.Errorf("%d calls are under way", n)
	}
	release()
	s.judge(t, ctx)
	o.book.report(t)
}

// tells sends a signal to the process.
func (n *node) tells(s syscall.Signal) {
	n.t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.cmd.Process.Signal(s); err != nil {
		n.t.Fatal(err)
	}
}

// alone is a single node whose runs call slow tools, and one that does.
func alone(t *testing.T, env ...string) (n *node, s *slow, ctx context.Context) {
	t.Helper()
	n = newNode(t, append([]string{"SVC_OUTBOUND_ALLOW=127.0.0.0/8"}, env...)...)
	n.start()
	ctx = within(t, time.Minute)
	return n, newSlow(t, ctx, n.tenant("slow"), 1500*time.Millisecond), ctx
}

// ended waits for the end of a process that was told to, in order.
func ended(t *testing.T, n *node, within time.Duration) {
	t.Helper()
	select {
	case <-n.ended():
	case <-time.After(within):
		t.Fatalf("the node has not ended within %s", within)
	}
	if code := n.exit(); code != 0 {
		t.Errorf("exit code %d: %s", code, n.logged())
	}
}

func TestSIGTERMFinishesTheCallsUnderWay(t *testing.T) {
	t.Parallel()
	n, s, ctx := alone(t)
	for i := range 8 {
		if _, err := s.starts(ctx, fmt.Sprint("r", i), script3(fmt.Sprint("r", i))); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, ctx, "calls are under way", func() bool { return s.underWay() > 0 })
	n.tells(syscall.SIGTERM)
	ended(t, n, 12*time.Second)
	if left := s.underWay(); left != 0 {
		t.Errorf("%d calls were cut", left)
	}
	n.start()
	s.judge(t, ctx)
}

func TestASecondSIGTERMCutsWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	n, s, ctx := alone(t)
	defer s.holds()()
	run, err := s.starts(ctx, "r", script3("r"))
	if err != nil {
		t.Fatal(err)
	}
	other, err := s.starts(ctx, "other", script3("other"))
	if err != nil {
		t.Fatal(err)
	}
	s.calling(ctx, 4)
	n.tells(syscall.SIGTERM)
	eventually(t, ctx, "it is not ready", func() bool { code, _ := n.readiness(ctx); return code == http.StatusServiceUnavailable })
	s.c.ask(t, ctx, http.StatusOK, "POST", "/v1/runs/"+other+"/cancel", nil, nil) // it still serves
	s.calling(ctx, 2)
	select {
	case <-n.ended():
		t.Fatal("it has ended in the midst of calls")
	default:
	}
	n.tells(syscall.SIGTERM)
	ended(t, n, 10*time.Second)
	s.hold.Store(nil)
	n.start()
	r := s.c.poll(t, ctx, run, "succeeded")
	if r.shape() != "llm:succeeded tool:failed tool:failed llm:succeeded tool:succeeded llm:succeeded" || s.begun("r-a") != 1 || s.begun("r-b") != 1 {
		t.Errorf("steps %s, called %d and %d times", r.shape(), s.begun("r-a"), s.begun("r-b"))
	}
}

func TestTheDrainTimeIsABound(t *testing.T) {
	t.Parallel()
	n, s, ctx := alone(t, "SVC_DRAIN_TIMEOUT=1s")
	defer s.holds()()
	if _, err := s.starts(ctx, "r", script3("r")); err != nil {
		t.Fatal(err)
	}
	s.calling(ctx, 2)
	told := time.Now()
	n.tells(syscall.SIGTERM)
	ended(t, n, 11*time.Second)
	if took := time.Since(told); took < time.Second {
		t.Errorf("it ended after %s: it did not wait for the calls", took)
	}
}
