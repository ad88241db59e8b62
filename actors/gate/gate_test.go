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
	"agentsvc/persistence/pg"
	"agentsvc/persistence/pgtest"
	"agentsvc/persistence/reseal"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
)

// patience bounds every wait.
const patience = time.Minute

// The process that is killed is this test binary, started with these.
const (
	childURL     = "GATE_TEST_DATABASE"
	childAddress = "GATE_TEST_GATE"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(childURL); url != "" {
		child(url, os.Getenv(childAddress))
	}
	os.Exit(m.Run())
}

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
	w := &world{t: t, db: db, pool: db.System(t), tenant: id.TenantID{UUID: id.NewAnywhere()}, keys: vault.New(oldKey)}
	w.exec(`INSERT INTO tenants (id, name) VALUES ($1, 'T')`, w.tenant)
	w.exec(`INSERT INTO webhooks (tenant_id, id, url, events, secret) VALUES ($1, $2, 'https://example.com/', '{gate.opened,gate.decided,gate.expired}', '')`,
		w.tenant, id.NewAnywhere())
	return w
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

// start makes a node with a writer of its own that hosts gates.
func start(ctx context.Context, system, writer *pgxpool.Pool, keys *vault.Vault, d Door) (n *cluster.Node, stop func() error, err error) {
	member := id.MemberID{UUID: id.NewAnywhere()}
	if _, err := system.Exec(ctx, `INSERT INTO members (id, address, lease_until) VALUES ($1, $2, now() + interval '1 hour')`, member, member.String()); err != nil {
		return nil, nil, err
	}
	j := journal.New(journal.Config{Pool: writer, Member: member, Tables: Traits.Tables})
	if err := j.Start(ctx); err != nil {
		return nil, nil, err
	}
	n = cluster.New(cluster.Config{Member: member, Log: zerolog.Nop()})
	durable.Register(n, j, New(Deps{Pool: system, Vault: keys, Door: d}), durable.Config{Log: zerolog.Nop()})
	if err := n.Start(ctx); err != nil {
		return nil, nil, err
	}
	return n, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		return errors.Join(n.Stop(ctx), j.Stop(ctx))
	}, nil
}

func (w *world) node(d Door) *cluster.Node {
	w.t.Helper()
	n, stop, err := start(w.t.Context(), w.pool, w.db.Pool(w.t, pg.Options{Role: pg.System, Writer: true}), w.keys, d)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if err := stop(); err != nil {
			w.t.Error(err)
		}
	})
	return n
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
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	v, err := n.Ask(ctx, a, m)
	if err != nil {
		t.Fatal(err)
	}
	return v.(Stands).Status
}

func (w *world) eventually(what string, ok func() bool) {
	w.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); !ok(); <-tick.C {
		if time.Now().After(end) {
			w.t.Fatal("not in time: " + what)
		}
	}
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
	w.eventually("it is carried out", func() bool { return w.status(a) == "passed, finished" })
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
	w.eventually("the sweep has it carried out", func() bool { return w.status(a) == "passed, finished" })
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

// child is a process that decides a gate and hangs at the door, until it is killed.
func child(url, address string) {
	ctx := context.Background()
	fail := func(err error) {
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	tenant, gate, _ := strings.Cut(address, "/")
	a := cluster.Address{Kind: Kind}
	fail(a.Tenant.UnmarshalText([]byte(tenant)))
	fail(a.ID.UnmarshalText([]byte(gate)))
	system, err := pg.Open(ctx, url, pg.Options{Role: pg.System})
	fail(err)
	writer, err := pg.Open(ctx, url, pg.Options{Role: pg.System, Writer: true})
	fail(err)
	d := &door{hangs: true, passes: make(chan struct{})}
	n, _, err := start(ctx, system, writer, vault.New(oldKey), d)
	fail(err)
	_, err = n.Ask(ctx, a, opening(`2`))
	fail(err)
	_, err = n.Ask(ctx, a, pass())
	fail(err)
	<-d.passes
	fmt.Println("at the door")
	select {}
}

// A process that is killed between its commit and its effect loses nothing: another one
// carries the gate out, once.
func TestAProcessIsKilledBetweenCommitAndEffect(t *testing.T) {
	w := newWorld(t)
	a := w.address()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
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
	w.eventually("the sweep has it carried out", func() bool { return w.status(a) == "passed, finished" })
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
	w.eventually("it expires", func() bool { return w.status(due) == "expired, finished" })
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
	w.eventually("it is carried out", func() bool { return slices.Equal(d.passed(a), []string{`"secret"`}) })
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
	w.eventually("the old one goes", func() bool { return w.status(old) == "" })
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
	n.Rest(Traits.Name)
	w.eventually("it leaves memory", func() bool { return !n.Active(a) })
}
