package blackbox

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"agentsvc/cmd/svc/client"
)

// end is what a run has come to.
type end struct {
	run    *runAnswer
	replay []client.Frame
}

// findings is all that is known of a load when it is over.
type findings struct {
	chores  []*chore
	talks   []*conversation
	visits  []*visit
	ends    map[string]*end   // by run
	listed  map[string]bool   // runs that the tenant sees
	ended   map[string]string // those of them that had ended, with their status
	strange map[string]string // those that no answer named, with their inputs
	parents map[string]string // of child runs
	ran     []*flowTale
	maybe   map[string]bool
	threads map[string][]heldMessage
	calls   []yardCall
	tales   []*tale
}

// heldMessage is one of a thread.
type heldMessage struct {
	Role, Content string
	RunID         string `json:"run_id"`
}

// find reads what there is to know, at any node.
func (l *load) find(t *testing.T) *findings {
	t.Helper()
	ctx := within(t, time.Minute)
	f := &findings{chores: l.chores, talks: l.talks, visits: l.visits, tales: l.tales, ran: l.ran, parents: map[string]string{}, maybe: l.maybe, calls: l.yard.calls(), ends: map[string]*end{}, listed: map[string]bool{}, ended: map[string]string{}, strange: map[string]string{},
		threads: map[string][]heldMessage{}}
	var runs []string
	for _, x := range l.chores {
		runs = append(runs, x.run)
	}
	for _, x := range l.talks {
		for _, p := range x.posts {
			runs = append(runs, p.run)
		}
	}
	var mu sync.Mutex // guards f
	each(8, len(runs), func(i int) {
		e := &end{run: new(runAnswer)}
		a, err := l.settled(ctx, runs[i], e.run)
		if err == nil && a.status == http.StatusOK {
			e.replay, err = l.scene.hear(ctx, runs[i], nil)
		}
		if err != nil {
			t.Errorf("run %s: %v", runs[i], err)
		}
		mu.Lock()
		defer mu.Unlock()
		if a.status == http.StatusOK {
			f.ends[runs[i]] = e
		}
	})
	each(8, len(l.talks), func(i int) {
		var got struct{ Items []heldMessage }
		a, err := l.c.careful(ctx, "GET", "/v1/threads/"+l.talks[i].thread+"/messages?limit=100", "", nil)
		if err == nil {
			err = a.decode(&got)
		}
		if err != nil {
			t.Errorf("thread %s: %v", l.talks[i].thread, err)
		}
		mu.Lock()
		defer mu.Unlock()
		f.threads[l.talks[i].thread] = got.Items
	})
	known := map[string]bool{}
	for _, run := range runs {
		known[run] = true
	}
	for _, x := range l.tales {
		known[x.run] = true
	}
	for _, x := range l.ran {
		known[x.run] = true
	}
	each(8, len(l.visits), func(i int) {
		if err := l.visits[i].look(ctx, l.c); err != nil {
			t.Errorf("%s: %v", l.visits[i].id, err)
		}
	})
	for _, x := range l.visits {
		for _, u := range x.posts {
			known[u.RunID] = known[u.RunID] || u.status == http.StatusAccepted
		}
	}
	all, err := l.scene.runs(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range all {
		f.listed[r.ID] = true
		if r.Parent != nil && known[*r.Parent] {
			f.parents[r.ID] = *r.Parent
			continue // the laws of workflows look at it, and no endpoint receives it
		}
		if terminalStatus[r.Status] {
			f.ended[r.ID] = r.Status
		}
		if known[r.ID] {
			continue
		}
		input := ""
		_ = json.Unmarshal(r.Input, &input)
		f.strange[r.ID] = input
	}
	return f
}

// settled reads a run until it is terminal.
func (l *load) settled(ctx context.Context, run string, into *runAnswer) (a answer, err error) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		if a, err = l.c.careful(ctx, "GET", "/v1/runs/"+run, "", nil); err != nil || a.status != http.StatusOK {
			return a, err
		}
		*into = runAnswer{}
		if err := a.decode(into); err != nil || terminalStatus[into.Run.Status] {
			return a, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return a, fmt.Errorf("it is %s: %w", into.Run.Status, ctx.Err())
		}
	}
}

// each calls do for 0 to n-1, at most so many at a time.
func each(atOnce, n int, do func(i int)) {
	places := make(chan struct{}, atOnce)
	var wg sync.WaitGroup
	for i := range n {
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			do(i)
		})
	}
	wg.Wait()
}

// hold holds the laws against what was found.
func (f *findings) hold(b *book, r *rulings) {
	twice := map[string]string{}
	for _, x := range f.chores {
		e := f.ends[x.run]
		b.rule(lawKeyed, twice[x.run] == "", "run %s is that of %s and of %s", x.run, twice[x.run], x.id)
		twice[x.run] = x.id
		b.rule(lawAccepted, e != nil && f.listed[x.run], "run %s of %s was accepted and is not there (listed: %t)", x.run, x.id, f.listed[x.run])
		if e == nil {
			continue
		}
		status := e.run.Run.Status
		b.rule(lawAccepted, status == "succeeded" || status == "cancelled" && x.cancelled != "" || x.cancelled == "failed", "run %s of %s is %s %+v, its cancel was answered %q",
			x.run, x.id, status, e.run.Run.Error, x.cancelled)
		if x.cancelled != "" {
			b.rule(lawFinal, x.cancelled == status, "the cancel of run %s was answered %s, and it is %s", x.run, x.cancelled, status)
		}
		f.final(b, x.run, x.polled, e)
		f.stream(r, x.id, x.run, x.frames, x.heard, "done "+x.id, e)
		if x.calls && status == "succeeded" {
			f.answered(b, x, e)
		}
	}
	for _, x := range f.talks {
		var want []heldMessage
		for _, p := range x.posts {
			e := f.ends[p.run]
			b.rule(lawKeyed, twice[p.run] == "", "run %s is that of %s and of %s", p.run, twice[p.run], x.id)
			twice[p.run] = x.id
			b.rule(lawAccepted, e != nil && f.listed[p.run], "run %s of %s was accepted and is not there (listed: %t)", p.run, x.id, f.listed[p.run])
			if e == nil {
				continue
			}
			b.rule(lawAccepted, e.run.Run.Status == "succeeded", "run %s of %s is %s %+v", p.run, x.id, e.run.Run.Status, e.run.Run.Error)
			f.final(b, p.run, "", e)
			_, says, _ := strings.Cut(p.content, "/say ")
			f.stream(r, x.id, p.run, p.frames, true, says, e)
			want = append(want, heldMessage{"user", p.content, p.run}, heldMessage{"assistant", e.run.text(), p.run})
		}
		b.rule(lawThreads, slices.Equal(f.threads[x.thread], want), "thread %s holds %+v, want %+v", x.thread, f.threads[x.thread], want)
	}
	for _, x := range f.visits {
		x.hold(b, f.listed, twice)
	}
	for _, x := range f.ran {
		b.rule(lawKeyed, twice[x.run] == "" || x.run == "", "run %s is that of %s and of %s", x.run, twice[x.run], x.id)
		twice[x.run] = x.id
		b.rule(lawAccepted, x.run == "" || f.listed[x.run], "run %s of %s was accepted and is not listed", x.run, x.id)
	}
	for run, input := range f.strange {
		b.rule(lawAccepted, f.maybe[input], "run %s was never answered with 202: a phantom: %q", run, input)
	}
	f.mutating(b)
	for _, x := range f.tales {
		if x.ended == "cancelled" {
			b.rule(lawFinal, !slices.ContainsFunc(x.frames, func(f client.Frame) bool { return f.Type == "run.completed" }), "run %s was cancelled: %s", x.run, types(x.frames))
		}
	}
}

// final looks at what a run that has ended says.
func (f *findings) final(b *book, run, polled string, e *end) {
	status := e.run.Run.Status
	if polled != "" {
		b.rule(lawFinal, polled == status, "run %s was %s and is %s", run, polled, status)
	}
	ends := 0
	for _, fr := range e.replay {
		if fr.Terminal() {
			ends++
			b.rule(lawFinal, (fr.Type == "run.completed") == (status == "succeeded"), "run %s is %s: %s", run, status, types(e.replay))
		}
	}
	b.rule(lawFinal, ends == 1, "run %s has %d terminal frames: %s", run, ends, types(e.replay))
}

// stream holds what was heard of a run against its replay.
func (f *findings) stream(r *rulings, id, run string, frames []client.Frame, heard bool, says string, e *end) {
	x := &tale{story: story{name: "without a gate"}, id: id, run: run, frames: frames}
	r.steps(x, &evidence{run: e.run})
	if heard {
		r.stream(x, &evidence{replay: e.replay})
	}
	if e.run.Run.Status == "succeeded" {
		text := e.run.text()
		r.rule(x, lawText, strings.HasSuffix(text, says) && lastText(e.replay) == text && (!heard || lastText(frames) == text), "answered %q, heard %q, replayed %q, it was to say %q",
			text, lastText(frames), lastText(e.replay), says)
	}
}

// answered looks for the calls of what the run says it has called.
func (f *findings) answered(b *book, x *chore, e *end) {
	for _, s := range e.run.Steps {
		if s.Kind != "tool" {
			continue
		}
		order := x.id + "-m"
		if strings.HasSuffix(s.Name, stampTool) {
			order = x.id + "-s"
		}
		n := len(f.of(order))
		var failed struct{ Error string }
		_ = json.Unmarshal(s.Output, &failed)
		switch {
		case s.Status == "succeeded":
			b.rule(lawMutating, n > 0, "%s is answered and was never called", order)
		case failed.Error == "UNKNOWN_OUTCOME" && order == x.id+"-s":
		default:
			b.breaks(lawMutating, "the step of %s is %s: %s", order, s.Status, s.Output)
		}
	}
}

// of are the calls for one order.
func (f *findings) of(order string) []yardCall {
	var out []yardCall
	for _, c := range f.calls {
		if c.order == order {
			out = append(out, c)
		}
	}
	return out
}

// mutating looks at all calls of tools that change something and are not gated.
func (f *findings) mutating(b *book) {
	orders, keys := map[string][]yardCall{}, map[string]string{}
	for _, c := range f.calls {
		orders[c.order] = append(orders[c.order], c)
	}
	for order, calls := range orders {
		first := calls[0]
		if strings.HasSuffix(order, "-s") {
			b.rule(lawMutating, len(calls) == 1 && first.tool == stampTool && first.args == fmt.Sprintf(`{"order":%q}`, order), "%s: %+v", order, calls)
			continue
		}
		same := true
		for _, c := range calls {
			same = same && c.args == first.args && c.tool == markTool
		}
		other := keys[first.key]
		b.rule(lawMutating, same && first.key != "" && other == "", "%s, whose key %s has too: %+v", order, other, calls)
		keys[first.key] = order
	}
}

// repeated counts the orders that were called more than once.
func (f *findings) repeated() int {
	n, seen := 0, map[string]int{}
	for _, c := range f.calls {
		if seen[c.order]++; seen[c.order] == 2 {
			n++
		}
	}
	return n
}

// rest is what a bed uses without requests.
type rest struct{ goroutines, descriptors, resident, connections float64 }

func (r rest) String() string {
	return fmt.Sprintf("%.0f goroutines, %.0f descriptors, %.0f MiB in the node that has most, %.0f connections", r.goroutines, r.descriptors, r.resident/(1<<20), r.connections)
}

// resting measures it; of each the most that any node has.
func (b *bed) resting() (rest, error) {
	var r rest
	for _, m := range b.nodes {
		for name, into := range map[string]*float64{"go_goroutines": &r.goroutines, "process_open_fds": &r.descriptors, "process_resident_memory_bytes": &r.resident} {
			v, ok := m.metric(name)
			if !ok {
				return r, fmt.Errorf("node %s has no metric %s", m.name, name)
			}
			*into = max(*into, v)
		}
	}
	err := b.admin.QueryRow(b.t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'svc%'`).Scan(&r.connections)
	return r, err
}

// no says what is more than it was before, but for what caches and pools may hold.
func (r rest) no(before rest) string {
	switch {
	case r.goroutines > 1.2*before.goroutines+20:
		return "more goroutines"
	case r.descriptors > before.descriptors+24:
		return "more descriptors"
	case r.resident > 1.5*before.resident+96<<20:
		return "more memory"
	case r.connections > before.connections+24:
		return "more connections to Postgres"
	}
	return ""
}

// rests waits until the bed uses no more than before.
func (b *bed) rests(before rest) {
	b.t.Helper()
	var now rest
	var err error
	why := ""
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(30 * time.Second); ; <-tick.C {
		now, err = b.resting()
		why = now.no(before)
		if err == nil && why == "" || time.Now().After(deadline) {
			break
		}
	}
	b.book.rule(lawBaseline, err == nil && why == "", "%s, before: %s; after: %s, %v", why, before, now, err)
	b.t.Logf("at rest before: %s; after: %s", before, now)
}
