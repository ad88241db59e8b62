package blackbox

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"agentsvc/cmd/svc/client"
)

// descendants returns the child processes of pid, and theirs.
func descendants(t *testing.T, pid int) []int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil || len(files) == 0 {
		t.Fatal("no processes can be seen", err)
	}
	children := map[int][]int{}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		text := string(b)
		fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
		child, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		parent, _ := strconv.Atoi(fields[1])
		children[parent] = append(children[parent], child)
	}
	all := slices.Clone(children[pid])
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i]]...)
	}
	return all
}

// hang stops the node's Postgres at any point: it neither refuses nor answers. The returned function resumes
// it.
func (n *node) hang(t *testing.T) func() {
	t.Helper()
	n.mu.Lock()
	pids := descendants(t, n.cmd.Process.Pid)
	n.mu.Unlock()
	if len(pids) < 3 {
		t.Fatalf("processes of Postgres: %v", pids)
	}
	all := func(s syscall.Signal) {
		for _, pid := range pids {
			syscall.Kill(pid, s)
		}
	}
	all(syscall.SIGSTOP)
	t.Cleanup(func() { all(syscall.SIGCONT) })
	return func() { all(syscall.SIGCONT) }
}

// arrivals are the frames of one connection with their times.
type arrivals struct {
	frames []client.Frame
	at     []time.Time
	err    error
}

// timed follows a run on one connection to its end. It returns after the first text of the model, or when the
// stream has ended without it.
func (c *caller) timed(t *testing.T, run string) <-chan arrivals {
	ctx := within(t, 60*time.Second)
	out, spoke := make(chan arrivals, 1), make(chan struct{})
	go func() {
		first := sync.OnceFunc(func() { close(spoke) })
		defer first()
		var a arrivals
		_, a.err = c.streamOnce(ctx, run, "", "", func(f client.Frame) bool {
			a.frames, a.at = append(a.frames, f), append(a.at, time.Now())
			if f.Type == "llm.delta" {
				first()
			}
			return true
		})
		out <- a
	}()
	<-spoke
	return out
}

// The commit that ends a run takes longer than every deadline: its open stream and its thread still learn of
// the end.
func TestAnEndDuringAHangIsAnnounced(t *testing.T) {
	t.Parallel()
	n := newNode(t, "SVC_CLUSTER_LEASE=30s")
	n.start()
	ctx := within(t, 60*time.Second)
	c := n.tenant("hang")
	agent := c.publish(t, "Helper", simulatedModel)
	thread := c.thread(t, ctx, agent)
	run := c.say(t, ctx, thread, "/delay 50ms\n/tokens 30")
	stream := c.timed(t, run)
	c.poll(t, ctx, run, "running")
	goOn := n.hang(t)
	eventually(t, ctx, "the activation gives up", func() bool { return strings.Contains(n.logged(), "activation ends") })
	goOn()
	back := time.Now()
	got := <-stream
	if got.err != nil || len(got.frames) == 0 || !got.frames[len(got.frames)-1].Terminal() {
		t.Fatalf("%v, %d frames", got.err, len(got.frames))
	}
	if took := got.at[len(got.at)-1].Sub(back); took > 10*time.Second {
		t.Errorf("the end came %s after the storage was back", took)
	}
	eventually(t, ctx, "readyz is 200", func() bool { status, _ := n.readiness(ctx); return status == 200 })
	answered := func(thread string) time.Duration {
		begin := time.Now()
		c.poll(t, ctx, c.say(t, ctx, thread, "/say next"), "succeeded")
		return time.Since(begin)
	}
	usual := answered(c.thread(t, ctx, agent))
	if took := answered(thread); took > 2*time.Second+4*usual { // the thread did not wait for a sweep
		t.Errorf("the thread's next run took %s, another's %s", took, usual)
	}
}

// A node whose lease has expired stops its work, refuses requests, and continues when the storage answers
// again.
func TestANodeWithoutALeaseStopsItsModels(t *testing.T) {
	t.Parallel()
	const lease = 2 * time.Second
	n := newNode(t, "SVC_CLUSTER_LEASE="+lease.String())
	n.start()
	ctx := within(t, 60*time.Second)
	c := n.tenant("lease")
	agent := c.publish(t, "Helper", simulatedModel)
	thread := c.thread(t, ctx, agent)
	run := c.say(t, ctx, thread, "/delay 20ms\n/tokens 350")
	stream := c.timed(t, run)
	c.poll(t, ctx, run, "running")
	goOn := n.hang(t)
	hung := time.Now()
	eventually(t, ctx, "readyz is 503", func() bool { status, _ := n.readiness(ctx); return status == 503 })
	eventually(t, ctx, "the hang has lasted", func() bool { return time.Since(hung) > 3*lease })
	if a, err := c.do(ctx, "POST", "/v1/threads/"+thread+"/messages", object{"content": "x"}); err != nil || a.status != 503 {
		t.Errorf("a post answers %v %s", err, a)
	}
	goOn()
	back := time.Now()
	got := <-stream
	if got.err != nil || len(got.frames) == 0 || !got.frames[len(got.frames)-1].Terminal() {
		t.Fatalf("%v, %d frames", got.err, len(got.frames))
	}
	quiet := time.Duration(0)
	for i, at := range got.at {
		if f := got.frames[i]; f.Type == "llm.delta" && at.After(hung.Add(2*lease)) && at.Before(back) {
			t.Fatalf("the model streamed %s after the storage had gone", at.Sub(hung))
		}
		if at.Before(back) {
			quiet = back.Sub(at)
		}
	}
	if quiet == 0 {
		t.Error("the model never streamed before: the test is void")
	}
	checkStream(t, &job{thread: thread, run: run, frames: got.frames})
	steps := ""
	for _, s := range c.read(t, ctx, run).Steps {
		steps += fmt.Sprint(s.Status, " ")
	}
	if steps != "abandoned succeeded " {
		t.Errorf("steps: %s", steps)
	}
}
