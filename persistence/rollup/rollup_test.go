package rollup

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type world struct {
	t     *testing.T
	pool  *pgxpool.Pool
	mu    sync.Mutex // guards tallies
	all   []Tally
	rng   *rand.Rand
	begin time.Time
}

func newWorld(t *testing.T) *world {
	return &world{t: t, pool: pgtest.New(t).System(t), rng: rand.New(rand.NewPCG(1, 2)), begin: time.Date(2026, 3, 28, 22, 50, 0, 0, time.UTC)}
}

// random makes tallies of two hours.
func (w *world) random(tenants []id.TenantID, agents []id.AgentID, n int) (out []Tally) {
	for range n {
		t := Tally{TenantID: tenants[w.rng.IntN(len(tenants))], What: lifecycle.Tallies[w.rng.IntN(len(lifecycle.Tallies))],
			At: w.begin.Add(time.Duration(w.rng.Int64N(int64(2 * time.Hour)))).Truncate(time.Microsecond)}
		if i := w.rng.IntN(len(agents) + 1); i < len(agents) {
			t.AgentID = &agents[i]
		}
		switch t.What {
		case lifecycle.TallySucceeded, lifecycle.TallyFailed, lifecycle.TallyCancelled:
			ms, first := w.rng.Int64N(100_000), w.rng.Int64N(1000)
			t.MS, t.FirstMS, t.TokensIn, t.TokensOut, t.CostUSD = &ms, &first, w.rng.Int64N(100), w.rng.Int64N(10), 0.25
		case lifecycle.TallyDecided:
			ms := w.rng.Int64N(1_000_000_000)
			t.MS = &ms
		}
		out = append(out, t)
	}
	return out
}

// insert writes tallies in one transaction.
func (w *world) insert(q interface {
	SendBatch(context.Context, *pgx.Batch) pgx.BatchResults
}, all []Tally,
) {
	w.t.Helper()
	var b pgx.Batch
	for _, t := range all {
		b.Queue(`INSERT INTO tallies (tenant_id, what, at, agent_id, ms, first_ms, tokens_in, tokens_out, cost_usd) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
			t.TenantID, string(t.What), t.At, t.AgentID, t.MS, t.FirstMS, t.TokensIn, t.TokensOut, t.CostUSD)
	}
	if err := q.SendBatch(w.t.Context(), &b).Close(); err != nil {
		w.t.Fatal(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, all...)
}

func (w *world) folder(most int, crash func() error) *Folder {
	return New(Config{Pool: w.pool, Log: zerolog.Nop(), most: most, crash: crash})
}

// fold folds until nothing is left. The transactions of other tests in the same server may
// delay it.
func (w *world) fold(f *Folder) (n int) {
	w.t.Helper()
	testkit.Eventually(w.t, "everything is folded", func() bool {
		m, err := f.runOnce(w.t.Context())
		if err != nil {
			w.t.Fatal(err)
		}
		n += m
		var some bool
		if err := w.pool.QueryRow(w.t.Context(), "SELECT EXISTS (SELECT FROM tallies)").Scan(&some); err != nil {
			w.t.Fatal(err)
		}
		return !some
	})
	return n
}

// agrees compares the sums with those of all tallies, computed naively.
func (w *world) agrees() {
	w.t.Helper()
	want := map[key]*Sums{}
	for i := range w.all {
		t := &w.all[i]
		for _, m := range Levels {
			d := time.Duration(m) * time.Minute
			k := key{t.TenantID, id.AgentID{}, m, time.UnixMilli(t.At.UnixMilli() / d.Milliseconds() * d.Milliseconds()).UTC()}
			count(want, k, t)
			if t.AgentID != nil {
				k.agent = *t.AgentID
				count(want, k, t)
			}
		}
	}
	rows, err := w.pool.Query(w.t.Context(), `SELECT tenant_id, agent_id, minutes, at, succeeded, failed, cancelled, requested, decided, expired, delivered, undelivered,
		tokens_in, tokens_out, cost_usd, duration, first_token, decision FROM stats`)
	if err != nil {
		w.t.Fatal(err)
	}
	got := map[key]*Sums{}
	var k key
	var s Sums
	var h [3][]byte
	_, err = pgx.ForEachRow(rows, []any{&k.tenant, &k.agent, &k.minutes, &k.at, &s.Succeeded, &s.Failed, &s.Cancelled, &s.Requested, &s.Decided, &s.Expired, &s.Delivered, &s.Undelivered,
		&s.TokensIn, &s.TokensOut, &s.CostUSD, &h[0], &h[1], &h[2]}, func() error {
		n := s
		n.Duration, n.FirstToken, n.Decision = nil, nil, nil
		k.at = k.at.UTC()
		got[k] = &n
		return errors.Join(n.Duration.MergeEncoded(h[0]), n.FirstToken.MergeEncoded(h[1]), n.Decision.MergeEncoded(h[2]))
	})
	if err != nil {
		w.t.Fatal(err)
	}
	if len(got) != len(want) {
		w.t.Errorf("%d rows of sums, want %d", len(got), len(want))
	}
	for k, s := range want {
		if !reflect.DeepEqual(got[k], s) {
			w.t.Fatalf("%+v:\n%+v\nwant\n%+v", k, got[k], s)
		}
	}
}

// The sums equal those computed naively, whatever the order of folds, and although folds die
// before their commit.
func TestSumsEqualANaiveComputation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tenants := []id.TenantID{{UUID: id.NewAnywhere()}, {UUID: id.NewAnywhere()}}
	agents := []id.AgentID{{UUID: id.NewAnywhere()}, {UUID: id.NewAnywhere()}, {UUID: id.NewAnywhere()}}
	died := 0
	dies := w.folder(100, func() error { died++; return errors.New("killed") })
	f := w.folder(100, nil)
	total := 0
	for range 8 {
		w.insert(w.pool, w.random(tenants, agents, 90))
		before := died
		testkit.Eventually(t, "a fold is killed", func() bool {
			_, err := dies.runOnce(t.Context())
			return err != nil && died > before
		})
		total += w.fold(f)
	}
	if died != 8 || total != 720 {
		t.Fatalf("%d folds died, %d tallies were folded", died, total)
	}
	w.agrees()
}

// Transactions that commit later than others that began after them are folded too, and once.
func TestLateCommitsAreFoldedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tenants, agents := []id.TenantID{{UUID: id.NewAnywhere()}}, []id.AgentID{{UUID: id.NewAnywhere()}}
	f := w.folder(0, nil)
	late, err := w.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w.insert(late, w.random(tenants, agents, 3))
	w.insert(w.pool, w.random(tenants, agents, 5))
	if n, err := f.runOnce(t.Context()); err != nil || n != 0 {
		t.Fatalf("%d tallies were folded past a transaction that has not ended: %v", n, err)
	}
	if err := late.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := w.fold(f); n != 8 {
		t.Fatalf("%d tallies were folded, want 8", n)
	}
	w.agrees()
}

// Counts that would overflow a sum do not keep other tallies from being folded.
func TestHugeCountsAreFolded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.folder(0, nil)
	mine, other := id.TenantID{UUID: id.NewAnywhere()}, id.TenantID{UUID: id.NewAnywhere()}
	huge := Tally{TenantID: mine, What: lifecycle.TallySucceeded, At: w.begin, TokensIn: math.MaxInt64, TokensOut: math.MaxInt64, CostUSD: math.Inf(1)}
	for range 2 { // each fold adds to the row of the one before
		w.insert(w.pool, []Tally{huge, huge, {TenantID: other, What: lifecycle.TallySucceeded, At: w.begin, TokensIn: 1}})
		w.fold(f)
	}
	w.agrees()
	var in, out, rest int64
	var cost float64
	if err := w.pool.QueryRow(t.Context(), `SELECT sum(tokens_in) FILTER (WHERE tenant_id = $1), sum(tokens_out) FILTER (WHERE tenant_id = $1),
		sum(cost_usd) FILTER (WHERE tenant_id = $1), sum(tokens_in) FILTER (WHERE tenant_id = $2) FROM stats WHERE minutes = 60`, mine, other).Scan(&in, &out, &cost, &rest); err != nil {
		t.Fatal(err)
	}
	if in != most || out != most || cost != most || rest != 2 {
		t.Fatal(in, out, cost, rest)
	}
}

// A transaction with more tallies than one fold takes is folded whole: a restore makes one of all
// that was left (see restart), and a large flush may be one.
func TestATransactionLargerThanAFold(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tenants, agents := []id.TenantID{{UUID: id.NewAnywhere()}}, []id.AgentID{{UUID: id.NewAnywhere()}}
	f := w.folder(5, nil)
	for _, n := range []int{2, 2, 12, 6, 1, 11} {
		w.insert(w.pool, w.random(tenants, agents, n))
	}
	if n := w.fold(f); n != 34 {
		t.Fatalf("%d tallies were folded, want 34", n)
	}
	w.agrees()
}

// A fold deletes rows of its series that are older than Keep, a few at a time; younger ones and
// those of other series stay.
func TestOldFiguresGo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tenant, agent := id.TenantID{UUID: id.NewAnywhere()}, id.AgentID{UUID: id.NewAnywhere()}
	other := id.AgentID{UUID: id.NewAnywhere()}
	w.begin = time.Now().Add(-2 * time.Hour).UTC().Truncate(time.Hour)
	for _, of := range []id.AgentID{{}, agent, other} {
		if _, err := w.pool.Exec(t.Context(), `INSERT INTO stats (tenant_id, agent_id, minutes, at, succeeded, failed, cancelled, requested, decided, expired, delivered, undelivered, tokens_in, tokens_out, cost_usd, duration, first_token, decision)
			SELECT $1, $2, m, now() - $3::interval + interval '1 minute' - make_interval(mins => m * n), 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, '', '', '' FROM unnest(ARRAY[1, 15, 60]) m, generate_series(0, 150) n`, tenant, of, Keep); err != nil {
			t.Fatal(err)
		}
	}
	left := func(of id.AgentID, old bool) (n int) {
		t.Helper()
		if err := w.pool.QueryRow(t.Context(), "SELECT count(*) FROM stats WHERE tenant_id = $1 AND agent_id = $2 AND at < now() - interval '1 day' AND (at < now() - $3::interval) = $4", tenant, of, Keep, old).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	f := w.folder(0, nil)
	for i, want := range []int{150, 0} {
		w.insert(w.pool, []Tally{{TenantID: tenant, What: lifecycle.TallySucceeded, At: w.begin, AgentID: &agent}})
		w.fold(f)
		for _, of := range []id.AgentID{{}, agent} {
			if old, young := left(of, true), left(of, false); old != want || young != 3 {
				t.Errorf("after fold %d: %d old rows of %s, want %d, and %d young ones", i+1, old, of, want, young)
			}
		}
	}
	if n := left(other, true); n != 450 {
		t.Errorf("%d rows of an agent without runs are left", n)
	}
}

// Folds of several nodes and commits at the same time count every tally once.
func TestConcurrentFolds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tenants, agents := []id.TenantID{{UUID: id.NewAnywhere()}}, []id.AgentID{{UUID: id.NewAnywhere()}}
	var batches [][]Tally
	for range 20 {
		batches = append(batches, w.random(tenants, agents, 10))
	}
	var wg sync.WaitGroup
	for part := range slices.Chunk(batches, 5) {
		wg.Go(func() {
			for _, all := range part {
				w.insert(w.pool, all)
			}
		})
	}
	for range 2 {
		wg.Go(func() {
			f := w.folder(30, nil)
			for range 10 {
				if _, err := f.runOnce(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	w.fold(w.folder(0, nil))
	w.agrees()
}

// A dump that is restored in a server with a lower counter of transactions loses nothing.
func TestARestoreInAYoungerServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tenants, agents := []id.TenantID{{UUID: id.NewAnywhere()}}, []id.AgentID{{UUID: id.NewAnywhere()}}
	f := w.folder(0, nil)
	w.insert(w.pool, w.random(tenants, agents, 4))
	w.fold(f)
	w.insert(w.pool, w.random(tenants, agents, 4)) // in the dump, not folded
	for _, sql := range []string{`UPDATE tallies SET xid = '900000000000'`, `UPDATE stats_mark SET folded = '800000000000'`} {
		if _, err := w.pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	w.insert(w.pool, w.random(tenants, agents, 4)) // of the younger server
	if n := w.fold(f); n != 8 {
		t.Fatalf("%d tallies were folded, want 8", n)
	}
	w.agrees()
}

// A folder folds by itself, and ends.
func TestTheLoopFolds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.insert(w.pool, w.random([]id.TenantID{{UUID: id.NewAnywhere()}}, []id.AgentID{{UUID: id.NewAnywhere()}}, 4))
	done := make(chan struct{})
	f := New(Config{Pool: w.pool, Log: zerolog.Nop(), Every: time.Millisecond, crash: sync.OnceValue(func() error { close(done); return nil })})
	if err := f.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-done
	f.Stop()
	w.fold(w.folder(0, nil))
	w.agrees()
}

func TestPercentiles(t *testing.T) {
	t.Parallel()
	h := Histogram{}
	if h.Percentile(0.5) != 0 || len(h.Encode()) != 0 {
		t.Fatal("an empty histogram")
	}
	for ms := range int64(10_000) {
		h.Add(ms + 1)
	}
	for p, want := range map[float64]float64{0.0001: 1, 0.01: 100, 0.5: 5000, 0.95: 9500, 1: 10_000} {
		if got := h.Percentile(p); got < want*0.95 || got > want*1.05 {
			t.Errorf("the percentile %v is %v, want %v within 5 %%", p, got, want)
		}
	}
	h.Add(-5)
	h.Add(0)
	h.Add(1 << 62)
	back := Histogram{}
	if err := back.MergeEncoded(h.Encode()); err != nil || !reflect.DeepEqual(back, h) {
		t.Errorf("%v: %v is read as %v", err, h, back)
	}
	for _, bad := range [][]byte{{1}, {1, 0x80}, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 1}, {246, 1, 1}} {
		if err := new(Histogram).MergeEncoded(bad); err == nil {
			t.Errorf("%v is read", bad)
		}
	}
}

func FuzzHistogram(f *testing.F) {
	f.Add([]byte{1, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		h := Histogram{}
		if h.MergeEncoded(b) == nil && len(h) > 0 {
			h.Percentile(0.95)
		}
	})
}

func zone(t *testing.T, name string) *time.Location {
	t.Helper()
	z, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return z
}

func TestPeriods(t *testing.T) {
	t.Parallel()
	at := func(s string) time.Time {
		v, err := time.Parse(time.RFC3339, s)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for _, c := range []struct {
		name, zone string
		step       Step
		from, to   string
		want       []string
	}{
		{"to is exclusive", "UTC", Hour, "2026-03-01T00:00:00Z", "2026-03-01T02:00:00Z", []string{"2026-03-01T00:00:00Z", "2026-03-01T01:00:00Z", "2026-03-01T02:00:00Z"}},
		{"a part of a period is a period", "UTC", Hour, "2026-03-01T00:59:59Z", "2026-03-01T01:00:01Z", []string{"2026-03-01T00:00:00Z", "2026-03-01T01:00:00Z", "2026-03-01T02:00:00Z"}},
		{"nothing", "UTC", Minute, "2026-03-01T00:00:00Z", "2026-03-01T00:00:00Z", []string{"2026-03-01T00:00:00Z"}},
		{"minutes", "UTC", Minute, "2026-03-01T00:00:30Z", "2026-03-01T00:01:30Z", []string{"2026-03-01T00:00:00Z", "2026-03-01T00:01:00Z", "2026-03-01T00:02:00Z"}},
		{"the clock goes forward: a day of 23 hours", "Europe/Berlin", Day, "2026-03-28T12:00:00Z", "2026-03-30T00:00:00Z",
			[]string{"2026-03-27T23:00:00Z", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z", "2026-03-30T22:00:00Z"}},
		{"the clock goes back: a day of 25 hours", "Europe/Berlin", Day, "2026-10-25T12:00:00Z", "2026-10-26T00:00:00Z",
			[]string{"2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z", "2026-10-26T23:00:00Z"}},
		{"midnight does not exist", "Africa/Cairo", Day, "2026-04-23T12:00:00Z", "2026-04-24T12:00:00Z",
			[]string{"2026-04-22T22:00:00Z", "2026-04-23T22:00:00Z", "2026-04-24T21:00:00Z"}},
		{"midnight comes twice", "America/Havana", Day, "2026-10-31T12:00:00Z", "2026-11-01T12:00:00Z",
			[]string{"2026-10-31T04:00:00Z", "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z"}},
		{"a day that a zone left out", "Pacific/Apia", Day, "2011-12-29T12:00:00Z", "2011-12-30T12:00:00Z",
			[]string{"2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z"}},
		{"half an hour from UTC", "Asia/Kolkata", Hour, "2026-03-01T00:00:00Z", "2026-03-01T01:00:00Z",
			[]string{"2026-02-28T23:30:00Z", "2026-03-01T00:30:00Z", "2026-03-01T01:30:00Z"}},
		{"the clock goes forward by half an hour", "Australia/Lord_Howe", Hour, "2026-10-03T14:30:00Z", "2026-10-03T16:00:00Z",
			[]string{"2026-10-03T14:30:00Z", "2026-10-03T15:00:00Z", "2026-10-03T16:00:00Z"}},
	} {
		got, ok := Periods(c.step, at(c.from), at(c.to), zone(t, c.zone), 400)
		var texts []string
		for _, b := range got {
			texts = append(texts, b.Format(time.RFC3339))
		}
		if !ok || !slices.Equal(texts, c.want) {
			t.Errorf("%s: %v %v, want %v", c.name, ok, texts, c.want)
		}
	}
	from := at("2026-01-01T00:00:00Z")
	for _, step := range Steps {
		length := map[Step]time.Duration{Minute: time.Minute, Hour: time.Hour, Day: 24 * time.Hour}[step]
		if b, ok := Periods(step, from, from.Add(400*length), time.UTC, 400); !ok || len(b) != 401 {
			t.Errorf("400 of %s: %v, %d bounds", step, ok, len(b))
		}
		if _, ok := Periods(step, from, from.Add(400*length+1), time.UTC, 400); ok {
			t.Errorf("401 of %s are taken", step)
		}
		if _, ok := Periods(step, time.Time{}, at("9999-12-31T23:59:59Z"), time.UTC, 400); ok {
			t.Errorf("ten thousand years of %s are taken", step)
		}
	}
}

// Ranges cover the periods exactly, with the longest rows that fit, in every zone.
func TestRanges(t *testing.T) {
	t.Parallel()
	from := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, name := range []string{"UTC", "Europe/Berlin", "Asia/Kolkata", "Asia/Kathmandu", "Australia/Lord_Howe", "America/St_Johns", "Pacific/Chatham"} {
		for _, step := range Steps {
			bounds, ok := Periods(step, from, from.Add(map[Step]time.Duration{Minute: 5 * time.Hour, Hour: 90 * time.Hour, Day: 390 * 24 * time.Hour}[step]), zone(t, name), 400)
			if !ok {
				t.Fatal("too many")
			}
			ranges := Ranges(bounds)
			at := bounds[0]
			for _, r := range ranges {
				d := time.Duration(r.Minutes) * time.Minute
				if !r.From.Equal(at) || !r.From.Before(r.To) || !r.From.Truncate(d).Equal(r.From) || !r.To.Truncate(d).Equal(r.To) {
					t.Fatalf("%s %s: the range %+v after %s", name, step, r, at)
				}
				for _, b := range bounds { // no row crosses a bound
					if b.After(r.From) && b.Before(r.To) && !b.Truncate(d).Equal(b) {
						t.Fatalf("%s %s: rows of %+v cross %s", name, step, r, b)
					}
				}
				at = r.To
			}
			if !at.Equal(bounds[len(bounds)-1]) {
				t.Fatalf("%s %s: the ranges end at %s", name, step, at)
			}
			if most := 1 + 2*len(bounds); len(ranges) > most {
				t.Errorf("%s %s: %d ranges", name, step, len(ranges))
			}
		}
	}
	if got := fmt.Sprint(Ranges([]time.Time{from, from.Add(24 * time.Hour)})); got != fmt.Sprint([]Range{{60, from, from.Add(24 * time.Hour)}}) {
		t.Errorf("a day is %s", got)
	}
}
