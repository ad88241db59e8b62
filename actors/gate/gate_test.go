package gate

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"agentsvc/actors/durable"
	"agentsvc/actors/sweep"
	"agentsvc/cluster"
	"agentsvc/persistence/feed"
	"agentsvc/persistence/journal"
	"agentsvc/persistence/journal/journaltest"
	"agentsvc/persistence/pgtest"
	"agentsvc/persistence/reseal"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/testkit"
)

// The process that is killed is this test binary, started with these variables.
const (
	childURL     = "GATE_TEST_DATABASE"
	childAddress = "GATE_TEST_GATE"
)

var (
	oldKey = vault.NewSecret32([32]byte{1})
	newKey = vault.NewSecret32([32]byte{2})
)

// world is a database with the kind's table, a tenant, and an endpoint that hears of gates.
type world struct {
	t      *testing.T
	db     *pgtest.DB
	pool   *pgxpool.Pool
	tenant id.TenantID
	keys   *vault.Vault
}

func newWorld(t *testing.T) *world {
	t.Helper()
	db := pgtest.New(t)
	if _, err := db.Admin(t).Exec(t.Context(), migration); err != nil {
		t.Fatal(err)
	}
	w := worldIn(t, db, id.TenantID{})
	w.tenant = pgtest.Tenant(t, w.pool)
	w.exec(`INSERT INTO webhooks (tenant_id, id, url, events, secret) VALUES ($1, $2, 'https://example.com/', '{gate.opened,gate.decided,gate.expired}', '')`,
		w.tenant, id.NewAnywhere())
	return w
}

func worldIn(t *testing.T, db *pgtest.DB, tenant id.TenantID) *world {
	return &world{t: t, db: db, pool: db.System(t), tenant: tenant, keys: vault.New(oldKey)}
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.pool.Exec(context.Background(), sql, args...); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) text(sql string, args ...any) (s string) {
	w.t.Helper()
	if err := w.pool.QueryRow(context.Background(), "SELECT coalesce(("+sql+")::text, '')", args...).Scan(&s); err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (w *world) status(a cluster.Address) string {
	return w.text(`SELECT status || CASE WHEN finished_at IS NULL THEN '' ELSE ', finished' END FROM gates WHERE id = $1`, a.ID)
}

func (w *world) address() cluster.Address {
	return cluster.Address{Kind: Kind, Tenant: w.tenant, ID: id.NewAnywhere()}
}

// door carries gates out and counts how often, by key.
type door struct {
	hangs  bool          // until its activation ends
	passes chan struct{} // each Pass that began; nil: nobody waits
	once   sync.Once

	mu  sync.Mutex // guards the fields below
	got map[string][]string
}

func (d *door) Pass(ctx context.Context, key string, args []byte) error {
	if d.passes != nil {
		d.once.Do(func() { close(d.passes) })
	}
	if d.hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.got == nil {
		d.got = map[string][]string{}
	}
	d.got[key] = append(d.got[key], string(args))
	return nil
}

func (d *door) passed(a cluster.Address) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.got[a.ID.String()+"/act"]
}

// node starts a node with a writer of its own that hosts gates.
func (w *world) node(d Door) *cluster.Node {
	w.t.Helper()
	member := pgtest.Member(w.t, w.pool)
	j := journaltest.Writer(w.t, w.db, journal.Config{Member: member, Tables: Traits.Tables})
	n := cluster.New(cluster.Config{Member: member, Log: zerolog.Nop()})
	durable.Register(n, j, New(Deps{Pool: w.pool, Vault: w.keys, Door: d}), durable.Config{Log: zerolog.Nop()})
	return testkit.Start(w.t, n)
}

// sweeps starts the service's sweep with this kind, and none of the service's.
func (w *world) sweeps(n *cluster.Node) {
	w.t.Helper()
	s := sweep.New(sweep.Config{Node: n, Rows: feed.NewSweep(w.pool), Kinds: []durable.Traits{Traits}, Member: n.Member(),
		Every: 10 * time.Millisecond, RetainEvery: 10 * time.Millisecond, Log: zerolog.Nop()})
	if err := s.Start(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(s.Stop)
}

func ask(t *testing.T, n *cluster.Node, a cluster.Address, m any) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	v, err := n.Ask(ctx, a, m)
	if err != nil {
		t.Fatal(err)
	}
	return v.(Stands).Status
}

// heard are the events in the outbox about a gate, by type.
func (w *world) heard(a cluster.Address) string {
	w.t.Helper()
	return w.text(`SELECT string_agg(type || ' ' || (convert_from(body, 'UTF8')::json -> 'data' ->> 'status') || ' ' || status, ', ' ORDER BY created_at)
		FROM webhook_deliveries WHERE convert_from(body, 'UTF8')::json -> 'data' ->> 'gate_id' = $1`, a.ID.String())
}

var tomorrow = time.Now().Add(24 * time.Hour).UTC().Truncate(time.Microsecond)

func opening(what string) Open { return Open{Args: json.RawMessage(what), DueAt: tomorrow} }

func pass() Decide { return Decide{Op: id.OpID{UUID: id.NewAnywhere()}, Pass: true} }

// A gate is created, decided and carried out, each once, however often it is asked, and
// each step is reported to the webhooks that hear of it.
func TestAGateIsDecidedOnce(t *testing.T) {
	w := newWorld(t)
	d := &door{}
	n, a := w.node(d), w.address()
	for range 2 {
		if got := ask(t, n, a, opening(`{"amount":7}`)); got != "open" {
			t.Fatal(got)
		}
	}
	if sealed := w.text(`SELECT encode(args, 'escape') FROM gates WHERE id = $1`, a.ID); strings.Contains(sealed, "amount") {
		t.Errorf("the arguments are stored in plain: %s", sealed)
	}
	if _, err := w.node(d).Ask(t.Context(), w.address(), pass()); !errors.Is(err, problem.NotFound("")) {
		t.Errorf("a gate that is not there: %v", err)
	}
	order := pass()
	for range 2 {
		if got := ask(t, n, a, order); got != "passed" {
			t.Fatal(got)
		}
	}
	if _, err := n.Ask(t.Context(), a, pass()); !errors.Is(err, problem.New(problem.CodeAlreadyDecided, "")) {
		t.Errorf("a second decision: %v", err)
	}
	testkit.Eventually(t, "it is carried out", func() bool { return w.status(a) == "passed, finished" })
	if got := d.passed(a); !slices.Equal(got, []string{`{"amount":7}`}) {
		t.Errorf("the door had %q", got)
	}
	if got := w.heard(a); got != "gate.opened open pending, gate.decided passed pending" {
		t.Errorf("heard %q", got)
	}
	if got := w.text(`SELECT count(*) FROM timers`); got != "0" {
		t.Errorf("%s timers are left", got)
	}
}

// An activation that another one overtakes between its commit and its effect changes
// nothing any more: the later one carries the gate out, found by the sweep.
func TestAGateIsTakenOver(t *testing.T) {
	w := newWorld(t)
	stuck := &door{hangs: true, passes: make(chan struct{})}
	former, a := w.node(stuck), w.address()
	ask(t, former, a, opening(`1`))
	order := pass()
	ask(t, former, a, order)
	<-stuck.passes
	d := &door{}
	owner := w.node(d)
	w.sweeps(owner)
	testkit.Eventually(t, "the sweep has it carried out", func() bool { return w.status(a) == "passed, finished" })
	if got := d.passed(a); !slices.Equal(got, []string{`1`}) {
		t.Errorf("the door had %q", got)
	}
	if got := w.text(`SELECT owner_epoch FROM gates WHERE id = $1`, a.ID); got != "2" {
		t.Errorf("epoch %s", got)
	}
	// The former activation still holds the row as it was.
	former.Tell(a, acted{})
	if got := ask(t, former, a, order); got != "passed" {
		t.Errorf("the former owner says %s", got)
	}
	if got := w.text(`SELECT version FROM gates WHERE id = $1`, a.ID); got != "3" {
		t.Errorf("version %s", got)
	}
}

// child is the process that decides a gate and hangs at the door, until it is killed.
func child(t *testing.T, url, address string) {
	tenant, gate, _ := strings.Cut(address, "/")
	a := cluster.Address{Kind: Kind}
	if err := errors.Join(a.Tenant.UnmarshalText([]byte(tenant)), a.ID.UnmarshalText([]byte(gate))); err != nil {
		t.Fatal(err)
	}
	d := &door{hangs: true, passes: make(chan struct{})}
	n := worldIn(t, &pgtest.DB{URL: url}, a.Tenant).node(d)
	ask(t, n, a, opening(`2`))
	ask(t, n, a, pass())
	<-d.passes
	fmt.Println("at the door")
	select {}
}

// A process that is killed between its commit and its effect loses nothing: another one
// carries the gate out, once.
func TestAProcessIsKilledBetweenCommitAndEffect(t *testing.T) {
	if url := os.Getenv(childURL); url != "" {
		child(t, url, os.Getenv(childAddress))
	}
	w := newWorld(t)
	a := w.address()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestAProcessIsKilledBetweenCommitAndEffect$")
	cmd.Env = append(os.Environ(), childURL+"="+w.db.URL, childAddress+"="+a.Tenant.String()+"/"+a.ID.String())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if killed := cmd.Process.Kill(); err != nil || killed != nil || line != "at the door\n" {
		t.Fatalf("%q, %v, %v", line, err, killed)
	}
	_ = cmd.Wait()
	if got := w.status(a); got != "passed" {
		t.Fatalf("it left %q", got)
	}
	d := &door{}
	w.sweeps(w.node(d))
	testkit.Eventually(t, "the sweep has it carried out", func() bool { return w.status(a) == "passed, finished" })
	if got := d.passed(a); !slices.Equal(got, []string{`2`}) {
		t.Errorf("the door had %q", got)
	}
	if got := w.heard(a); got != "gate.opened open pending, gate.decided passed pending" {
		t.Errorf("heard %q", got)
	}
}

// A due timer reaches the gate through the sweep, once, and not before its time.
func TestAGateExpires(t *testing.T) {
	w := newWorld(t)
	n := w.node(&door{})
	w.sweeps(n)
	due, later := w.address(), w.address()
	ask(t, n, due, Open{Args: json.RawMessage(`1`), DueAt: time.Now().Add(50 * time.Millisecond)})
	ask(t, n, later, opening(`2`))
	testkit.Eventually(t, "it expires", func() bool { return w.status(due) == "expired, finished" })
	if got := w.heard(due); got != "gate.opened open pending, gate.expired expired pending" {
		t.Errorf("heard %q", got)
	}
	if got := w.status(later) + ", timers of " + w.text(`SELECT string_agg(entity_id::text, ' ') FROM timers`); got != "open, timers of "+later.ID.String() {
		t.Errorf("the other one: %s", got)
	}
	sick, err := feed.NewSweep(w.pool).Diagnose(t.Context(), Traits.Checks)
	if err != nil || len(sick) != 1 || sick[0].Count != 0 {
		t.Errorf("%+v, %v", sick, err)
	}
	w.exec(`DELETE FROM timers`)
	if sick, err = feed.NewSweep(w.pool).Diagnose(t.Context(), Traits.Checks); err != nil || sick[0].Count != 1 || sick[0].Example != later.ID.String() {
		t.Errorf("a timer is lost: %+v, %v", sick, err)
	}
}

// The sealed column moves to another master key, and the gate opens without the old one.
func TestAGatesArgumentsAreResealed(t *testing.T) {
	w := newWorld(t)
	a := w.address()
	ask(t, w.node(&door{}), a, opening(`"secret"`))
	report, err := reseal.Run(t.Context(), w.pool, vault.New(newKey, oldKey), Traits.Sealed)
	if err != nil || report.PreviousNeeded || len(report.Columns) != 1 || report.Columns[0].Rewrapped != 1 {
		t.Fatalf("%+v, %v", report, err)
	}
	w.keys = vault.New(newKey)
	opened, err := reseal.Sample(t.Context(), w.pool, w.keys, Traits.Sealed)
	if err != nil || len(opened) != 1 || !opened[0].Found || opened[0].Err != nil {
		t.Errorf("%+v, %v", opened, err)
	}
	d := &door{}
	n := w.node(d)
	if got := ask(t, n, a, pass()); got != "passed" {
		t.Fatal(got)
	}
	testkit.Eventually(t, "it is carried out", func() bool { return slices.Equal(d.passed(a), []string{`"secret"`}) })
}

// Retention deletes gates that finished long ago, and no others.
func TestOldGatesGo(t *testing.T) {
	w := newWorld(t)
	n := w.node(&door{})
	old, young, open := w.address(), w.address(), w.address()
	for _, a := range []cluster.Address{old, young, open} {
		ask(t, n, a, opening(`1`))
	}
	for _, a := range []cluster.Address{old, young} {
		ask(t, n, a, Decide{Op: id.OpID{UUID: id.NewAnywhere()}})
	}
	w.exec(`UPDATE gates SET finished_at = now() - interval '31 days' WHERE id = $1`, old.ID)
	w.exec(`UPDATE gates SET finished_at = now() - interval '29 days' WHERE id = $1`, young.ID)
	w.sweeps(n)
	testkit.Eventually(t, "the old one goes", func() bool { return w.status(old) == "" })
	if got := w.status(young) + ", " + w.status(open); got != "refused, finished, open" {
		t.Errorf("the others: %s", got)
	}
}

// The kind's messages cross nodes, its metrics are registered, and a node that is suspended
// takes it out of memory.
func TestWhatTheListOfKindsIsFor(t *testing.T) {
	codec := msg.NewCodec(Traits.Messages...)
	for _, m := range []any{opening(`1`), pass(), Stands{"open"}} {
		name, body, err := codec.Encode(m)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := codec.Decode(name, body); err != nil || fmt.Sprint(back) != fmt.Sprint(m) {
			t.Errorf("%v became %v, %v", m, back, err)
		}
	}
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(Traits.Collectors...)
	if got, err := metrics.Gather(); err != nil || len(got) != 1 || got[0].GetName() != "svc_gate_decisions_total" {
		t.Errorf("%v, %v", got, err)
	}
	w := newWorld(t)
	n, a := w.node(&door{}), w.address()
	ask(t, n, a, opening(`1`))
	if !n.Active(a) {
		t.Fatal("it left memory by itself")
	}
	n.Suspend(Traits.Name)
	testkit.Eventually(t, "it leaves memory", func() bool { return !n.Active(a) })
}
