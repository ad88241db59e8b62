package rollup

import (
	"bytes"
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"agentsvc/persistence/pg"
	"agentsvc/schemas/id"
)

//go:embed queries/*.sql
var files embed.FS

var queries = pg.Queries(files)

const (
	maxFold     = 5_000 // tallies of one fold
	foldTimeout = 30 * time.Second
	// Keep is how long rows of stats stay: a request for the last 400 days, the most that there
	// are of one, is answered in full in each zone.
	Keep = 402 * 24 * time.Hour
)

// Config configures a Folder. A zero value means the default in the field's comment.
type Config struct {
	Pool *pgxpool.Pool // of the system role
	// Every is the time between two folds, 5 s.
	Every time.Duration
	// Live reports whether the node holds its lease; nil: always.
	Live func() bool
	Log  zerolog.Logger

	most  int          // tallies of one fold; 0: maxFold
	crash func() error // of tests: an error ends the process before the commit
}

// Folder adds tallies to the sums.
type Folder struct {
	cfg    Config
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// New returns a Folder that Start starts.
func New(cfg Config) *Folder {
	if cfg.Every <= 0 {
		cfg.Every = 5 * time.Second
	}
	if cfg.Live == nil {
		cfg.Live = func() bool { return true }
	}
	if cfg.most <= 0 {
		cfg.most = maxFold
	}
	if cfg.crash == nil {
		cfg.crash = func() error { return nil }
	}
	return &Folder{cfg: cfg}
}

// Start begins the loop.
func (f *Folder) Start(context.Context) error {
	ctx, cancel := context.WithCancel(context.Background())
	f.cancel = cancel
	f.wg.Go(func() { f.loop(ctx) })
	return nil
}

// Stop ends the loop and waits for it.
func (f *Folder) Stop() {
	if f.cancel != nil {
		f.cancel()
	}
	f.wg.Wait()
}

func (f *Folder) loop(ctx context.Context) {
	next := time.NewTimer(f.cfg.Every)
	defer next.Stop()
	failing := false
	for {
		select {
		case <-next.C:
		case <-ctx.Done():
			return
		}
		began := time.Now()
		n, err := f.runOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil && !failing {
			f.cfg.Log.Warn().Err(err).Msg("figures are not folded")
		}
		failing = err != nil
		folded.Add(float64(n))
		if err != nil {
			failures.Inc()
		}
		rest := f.cfg.Every
		if n >= f.cfg.most/2 {
			rest = 0 // more wait
		}
		next.Reset(max(rest, time.Since(began)))
	}
}

// key names a row of stats.
type key struct {
	tenant  id.TenantID
	agent   id.AgentID // zero: all
	minutes int
	at      time.Time
}

// runOnce folds once. It returns how many tallies it folded; none if another node folds.
func (f *Folder) runOnce(ctx context.Context) (n int, err error) {
	if !f.cfg.Live() {
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, foldTimeout)
	defer cancel()
	var some bool
	if err := f.cfg.Pool.QueryRow(ctx, queries.Get("any")).Scan(&some); err != nil || !some {
		return 0, wrap(err)
	}
	err = pgx.BeginFunc(ctx, f.cfg.Pool, func(tx pgx.Tx) error {
		n, err = f.fold(ctx, tx)
		return err
	})
	if err != nil {
		return 0, wrap(err)
	}
	return n, nil
}

func wrap(err error) error {
	if err != nil {
		return fmt.Errorf("fold figures: %w", err)
	}
	return nil
}

func (f *Folder) fold(ctx context.Context, tx pgx.Tx) (int, error) {
	var from, to string
	var behind bool
	err := tx.QueryRow(ctx, queries.Get("mark")).Scan(&from, &to, &behind)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if behind {
		if _, err := tx.Exec(ctx, queries.Get("restart")); err != nil {
			return 0, err
		}
		_, err := tx.Exec(ctx, queries.Get("advance"), "0")
		return 0, err
	}
	err = tx.QueryRow(ctx, queries.Get("bound"), from, to, f.cfg.most).Scan(&to)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return 0, err
	}
	rows, err := tx.Query(ctx, queries.Get("take"), from, to)
	if err != nil {
		return 0, err
	}
	tallies, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Tally])
	if err != nil || len(tallies) == 0 {
		return 0, err
	}
	sums := map[key]*Sums{}
	for i := range tallies {
		t := &tallies[i]
		for _, minutes := range Levels {
			k := key{tenant: t.TenantID, minutes: minutes, at: t.At.UTC().Truncate(time.Duration(minutes) * time.Minute)}
			count(sums, k, t)
			if t.AgentID != nil {
				k.agent = *t.AgentID
				count(sums, k, t)
			}
		}
	}
	if err := put(ctx, tx, sums); err != nil {
		return 0, err
	}
	if err := trim(ctx, tx, sums, time.Now().Add(-Keep)); err != nil {
		return 0, err
	}
	if _, err := tx.Exec(ctx, queries.Get("advance"), to); err != nil {
		return 0, err
	}
	return len(tallies), f.cfg.crash()
}

func count(sums map[key]*Sums, k key, t *Tally) {
	s := sums[k]
	if s == nil {
		s = &Sums{}
		sums[k] = s
	}
	s.Count(t)
}

// trim deletes rows that are older than a moment, of the series that sums belong to. Series that
// get no more rows need no trimming: they do not grow.
func trim(ctx context.Context, tx pgx.Tx, sums map[key]*Sums, old time.Time) error {
	series := map[key]bool{}
	for k := range sums {
		k.at = time.Time{}
		series[k] = true
	}
	var (
		tenants []id.TenantID
		agents  []id.AgentID
		minutes []int32
	)
	for k := range series {
		tenants, agents, minutes = append(tenants, k.tenant), append(agents, k.agent), append(minutes, int32(k.minutes))
	}
	_, err := tx.Exec(ctx, queries.Get("trim"), tenants, agents, minutes, old)
	return err
}

// put adds sums to the rows of stats.
func put(ctx context.Context, tx pgx.Tx, sums map[key]*Sums) error {
	keys := make([]key, 0, len(sums))
	for k := range sums {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b key) int {
		return cmp.Or(bytes.Compare(a.tenant.UUID[:], b.tenant.UUID[:]), bytes.Compare(a.agent.UUID[:], b.agent.UUID[:]), a.minutes-b.minutes, a.at.Compare(b.at))
	})
	n := len(keys)
	var (
		ords, minutes = make([]int32, n), make([]int32, n)
		tenants       = make([]id.TenantID, n)
		agents        = make([]id.AgentID, n)
		ats           = make([]time.Time, n)
		numbers       [10][]int64
		costs         = make([]float64, n)
		histograms    [3][][]byte
	)
	for i := range numbers {
		numbers[i] = make([]int64, n)
	}
	for i := range histograms {
		histograms[i] = make([][]byte, n)
	}
	for i, k := range keys {
		ords[i], minutes[i], tenants[i], agents[i], ats[i] = int32(i), int32(k.minutes), k.tenant, k.agent, k.at
	}
	if _, err := tx.Exec(ctx, queries.Get("plan")); err != nil {
		return err
	}
	rows, err := tx.Query(ctx, queries.Get("histograms"), ords, tenants, agents, minutes, ats)
	if err != nil {
		return err
	}
	var ord int
	var duration, first, decision []byte
	_, err = pgx.ForEachRow(rows, []any{&ord, &duration, &first, &decision}, func() error {
		s := sums[keys[ord]]
		return errors.Join(s.Duration.MergeEncoded(duration), s.FirstToken.MergeEncoded(first), s.Decision.MergeEncoded(decision))
	})
	if err != nil {
		return err
	}
	for i, k := range keys {
		s := sums[k]
		for j, v := range []int64{s.Succeeded, s.Failed, s.Cancelled, s.Requested, s.Decided, s.Expired, s.Delivered, s.Undelivered, s.TokensIn, s.TokensOut} {
			numbers[j][i] = v
		}
		costs[i] = s.CostUSD
		for j, h := range []Histogram{s.Duration, s.FirstToken, s.Decision} {
			histograms[j][i] = h.Encode()
		}
	}
	_, err = tx.Exec(ctx, queries.Get("put"), tenants, agents, minutes, ats, numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5], numbers[6], numbers[7],
		numbers[8], numbers[9], costs, histograms[0], histograms[1], histograms[2])
	return err
}
