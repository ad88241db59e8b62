package blackbox

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"agentsvc/cluster/placement"
	"agentsvc/schemas/id"
)

// places is SVC_RUN_CONCURRENCY of TestTheRunsOfATenantTakeTurnsOverNodes.
const places = 2

// runsWaiting is how many runs wait for a place with a node's slots.
const runsWaiting = "svc_limit_runs_waiting"

// inLine are runs of a tenant that wait for each other, on all nodes.
type inLine struct {
	*operated
	runs []string // in the order in which they were accepted
	long []string // those of them that hold the places until they are cancelled
}

// post begins a run at a node.
func (x *inLine) post(ctx context.Context, m *member, input string) string {
	x.t.Helper()
	run, err := x.begins(ctx, m, input, fmt.Sprint("turn-", len(x.runs)))
	if err != nil {
		x.t.Fatalf("node %s: %v", m.name, err)
	}
	x.runs = append(x.runs, run)
	return run
}

// occupy takes all places, at one node.
func (x *inLine) occupy(ctx context.Context, m *member) {
	x.t.Helper()
	for range places {
		run := x.post(ctx, m, "/delay 1s\n/tokens 600")
		x.c.poll(x.t, m.on(ctx), run, "running")
		x.long = append(x.long, run)
	}
}

// line posts n runs, to one node after another, and waits until all of them stand
// in line.
func (x *inLine) line(ctx context.Context, n int) []string {
	x.t.Helper()
	begun := len(x.runs)
	for i := range n {
		x.post(ctx, x.nodes[i%len(x.nodes)], fmt.Sprintf("/delay 20ms\n/tokens 10\n/say turn %d", i))
	}
	x.waiting(ctx, n, x.nodes...)
	return x.runs[begun:]
}

// waiting waits until n runs wait for a place, as the nodes count them.
func (x *inLine) waiting(ctx context.Context, n int, nodes ...*member) {
	x.t.Helper()
	eventually(x.t, ctx, fmt.Sprintf("%d runs wait for a place", n), func() bool { return sum(x.t, runsWaiting, nodes...) == float64(n) })
}

// vacate cancels one of the runs that hold the places.
func (x *inLine) vacate(ctx context.Context) {
	x.t.Helper()
	x.c.ask(x.t, ctx, 200, "POST", "/v1/runs/"+x.long[0]+"/cancel", nil, nil)
	x.c.poll(x.t, ctx, x.long[0], "cancelled")
	x.long = x.long[1:]
}

// inTurn asks that runs end well and are begun in their order, by the one place that
// is free: of two that are granted places at a time, the later may begin first.
func (x *inLine) inTurn(ctx context.Context, runs []string) {
	x.t.Helper()
	for len(x.long) >= places {
		x.vacate(ctx)
	}
	var before *runAnswer
	for i, run := range runs {
		r := x.c.poll(x.t, ctx, run, "succeeded")
		if before != nil && r.Run.StartedAt.Before(*before.Run.StartedAt) {
			x.t.Errorf("run %d of %d, created at %s, began %s before the one that was there first, created at %s",
				i, len(runs), r.Run.CreatedAt, before.Run.StartedAt.Sub(*r.Run.StartedAt), before.Run.CreatedAt)
		}
		before = r
	}
	for len(x.long) > 0 {
		x.vacate(ctx)
	}
}

// most is how many of all the runs were running at a time.
func (x *inLine) most(ctx context.Context) (most int) {
	x.t.Helper()
	type change struct {
		at  time.Time
		by  int
		run string
	}
	var changes []change
	for _, run := range x.runs {
		r := x.c.read(x.t, ctx, run).Run
		if r.StartedAt == nil || r.FinishedAt == nil {
			x.t.Fatalf("run %s, %s, was from %v to %v", run, r.Status, r.StartedAt, r.FinishedAt)
		}
		changes = append(changes, change{*r.StartedAt, 1, run}, change{*r.FinishedAt, -1, run})
	}
	slices.SortFunc(changes, func(a, b change) int { return cmp.Or(a.at.Compare(b.at), a.by-b.by) })
	running := 0
	for i, c := range changes {
		if running += c.by; running > places {
			x.t.Logf("%s began at %s beside %d others, next is %s at %s (%+d)", c.run, c.at, running-1, changes[i+1].run, changes[i+1].at, changes[i+1].by)
		}
		most = max(most, running)
	}
	return most
}

// keeper is the node that has the slots of the tenant.
func (x *inLine) keeper() *member {
	x.t.Helper()
	tenant, err := id.Parse(x.c.Tenant)
	if err != nil {
		x.t.Fatal(err)
	}
	nodes := x.listed()
	var members []id.MemberID
	for _, n := range nodes {
		members = append(members, n.ID)
	}
	table, err := placement.New(members)
	if err != nil {
		x.t.Fatal(err)
	}
	for m, n := range nodes {
		if n.ID == table.Owner(tenant.Shard()) {
			return m
		}
	}
	x.t.Fatalf("nobody of %v has the tenant", nodes)
	return nil
}

// TestTheRunsOfATenantTakeTurnsOverNodes posts runs to all nodes where a tenant may
// have so many running at a time: they are begun in the order in which they were
// accepted, no more of them run, and no other tenant waits for them. That holds over
// the death of the node that has the line and the runs that hold its places.
func TestTheRunsOfATenantTakeTurnsOverNodes(t *testing.T) {
	const many = 9 // in line
	x := &inLine{operated: newOperated(t, 3*time.Second, fmt.Sprint("SVC_RUN_CONCURRENCY=", places))}
	ctx := within(t, 90*time.Second)
	keeper := x.keeper()
	others := x.others(keeper)

	x.occupy(ctx, others[0])
	line := x.line(ctx, many)
	if n := sum(t, runsWaiting, keeper); n != many {
		t.Errorf("%v of %d runs wait at node %s: the test does not know who has the line", n, many, keeper.name)
	}
	quiet := x.client(x.desk.tenant("quiet"), x.book)
	agent := quiet.publish(t, "Talks", simulatedModel)
	for range 3 {
		quiet.poll(t, ctx, quiet.runOnce(t, ctx, agent, "/say nobody is before me"), "succeeded")
	}
	for _, run := range line {
		if r := x.c.read(t, ctx, run).Run; r.Status != "queued" || r.StartedAt != nil {
			t.Errorf("run %s is %s, and all places are taken", run, r.Status)
		}
	}
	x.inTurn(ctx, line)

	x.occupy(ctx, keeper)
	line = x.line(ctx, many)
	keeper.kill()
	killed := time.Now()
	x.waiting(ctx, many, others...)
	for _, run := range x.long {
		if r := x.c.read(t, ctx, run).Run; r.Status != "running" {
			t.Errorf("run %s, whose node was killed, is %s", run, r.Status)
		}
	}
	again := time.Since(killed)
	x.inTurn(ctx, line)
	if most := x.most(ctx); most != places {
		t.Errorf("%d runs of the tenant ran at a time, and may %d", most, places)
	}
	x.waiting(ctx, 0, others...)
	x.book.report(t)
	t.Logf("all %d stood in line again %s after the kill", many, again.Round(time.Millisecond))
}
