package journal

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"agentsvc/persistence/pg"
	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

const (
	benchCallers = 256
	benchLanes   = 2
)

var (
	benchText = strings.Repeat("x", 1000)
	benchJSON = json.RawMessage(`{"text":"` + benchText + `"}`)
)

// benchWorld is a world on a disk that syncs, with a thread for every caller.
func benchWorld(b *testing.B, callers int) (*world, *pgtest.Cluster, []*caller) {
	cluster := pgtest.Private(b, pgtest.PrivateOptions{Fsync: true})
	x := worldIn(b, &cluster.DB, func(c *Config) { c.Lanes = benchLanes })
	all := make([]*caller, callers)
	for i := range all {
		shard := id.Shard(i % id.Shards)
		all[i] = &caller{x: x, thread: x.newThread(shard), shard: shard}
	}
	return x, cluster, all
}

// caller is one thread and what it needs to post run after run.
type caller struct {
	x      *world
	thread id.ThreadID
	shard  id.Shard
	posts  int64
}

// path are the three commits of a run: accepted, begun, ended.
func (c *caller) path() [3]*draft {
	run := id.RunID{UUID: id.New(c.shard)}
	seq := 2*c.posts + 1
	c.posts++
	now := time.Now()
	commit := func() *draft { return &draft{Op: id.OpID{UUID: id.New(c.shard)}, Tenant: c.x.tenant, Shard: c.shard} }
	accept, begin, end := commit(), commit(), commit()
	accept.New = true
	accept.Thread = &ThreadUpdate{ID: c.thread, Guard: Guard{Version: c.posts}, NextSeq: seq + 2, UpdatedAt: now}
	accept.Accept = &RunInsert{ID: run, AgentID: &c.x.agent, AgentVersion: ptr(1), ThreadID: &c.thread, ThreadSeq: &seq,
		Input: json.RawMessage(`{"text":"hi"}`), OriginKind: lifecycle.OriginAPIKey, OriginID: c.x.tenant.UUID, CreatedAt: now}
	accept.Messages = []Message{{Thread: c.thread, Seq: seq, ID: id.MessageID{UUID: id.New(c.shard)}, Role: "user", Content: "hi", Run: &run, CreatedAt: now}}
	accept.Audit = []Audit{{ID: id.AuditID{UUID: id.New(c.shard)}, At: now, Actor: "key", Action: "run.accept", TargetKind: "run", TargetID: run.UUID}}
	begin.Run = &RunUpdate{ID: run, Guard: Guard{Version: 1, SetEpoch: 1}, Status: lifecycle.RunRunning, StartedAt: &now, Seq: 1, Steps: 1, State: []byte("state")}
	begin.Began = []StepInsert{{Run: run, Kind: lifecycle.StepLLM, Name: "model", Status: lifecycle.StepRunning, AgentID: &c.x.agent, AgentVersion: ptr(1), BeganSeq: 1, StartedAt: now}}
	end.Run = &RunUpdate{ID: run, Guard: Guard{Version: 2, Epoch: 1, SetEpoch: 1}, Status: lifecycle.RunSucceeded, Output: benchJSON, TokensIn: 10, TokensOut: 100, CostUSD: 0.01,
		StartedAt: &now, FinishedAt: &now, Seq: 3, Steps: 1}
	end.Ended = []StepUpdate{{Run: run, Status: lifecycle.StepSucceeded, Output: benchJSON, Segments: []int32{0, 1000}, TokensIn: 10, TokensOut: 100, CostUSD: 0.01, EndedSeq: ptr(int64(2)), FinishedAt: now}}
	end.Messages = []Message{{Thread: c.thread, Seq: seq + 1, ID: id.MessageID{UUID: id.New(c.shard)}, Role: "assistant", Content: benchText, Run: &run, CreatedAt: now}}
	end.Usage = []Usage{{ID: id.UsageID{UUID: id.New(c.shard)}, At: now, Kind: lifecycle.UsageLLM, Run: &run, Agent: &c.x.agent, Model: "model", TokensIn: 10, TokensOut: 100, CostUSD: 0.01}}
	return [3]*draft{accept, begin, end}
}

// write drives n runs through the writer by all callers at once.
func write(b *testing.B, x *world, callers []*caller, n int) time.Duration {
	b.Helper()
	var left atomic.Int64
	left.Store(int64(n))
	var wg sync.WaitGroup
	start := time.Now()
	for _, c := range callers {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				for _, commit := range c.path() {
					if err := x.w.Do(context.Background(), commit.commit()); err != nil {
						b.Error(err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	return time.Since(start)
}

// raw writes n runs as fast as hand-made batches can: on as many connections as
// the writer has lanes, each batch the same step of as many runs as meet in a
// lane, with nothing to wait for, to fence, to order or to answer.
func raw(b *testing.B, cluster *pgtest.Cluster, callers []*caller, n int) time.Duration {
	b.Helper()
	pool := cluster.Pool(b, pg.Options{Role: pg.System, Writer: true, MaxConns: benchLanes})
	var wg sync.WaitGroup
	start := time.Now()
	per := len(callers) / benchLanes
	for lane := range benchLanes {
		mine := callers[lane*per : (lane+1)*per]
		wg.Go(func() {
			conn, err := pool.Acquire(context.Background())
			if err != nil {
				b.Error(err)
				return
			}
			defer conn.Release()
			if _, err := conn.Exec(context.Background(), queries.Get("lane_setup")); err != nil {
				b.Error(err)
				return
			}
			for done := 0; done < n/benchLanes; done += per {
				paths := make([][3]*draft, per)
				for i, c := range mine {
					paths[i] = c.path()
				}
				for step := range 3 {
					var batch pgx.Batch
					handMade(&batch, paths, step)
					if err := conn.SendBatch(context.Background(), &batch).Close(); err != nil {
						b.Error(err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	return time.Since(start)
}

// columns are hand-made array parameters.
type columns []any

func array[T any](paths [][3]*draft, step int, of func(*draft) T) []T {
	out := make([]T, len(paths))
	for i := range paths {
		out[i] = of(paths[i][step])
	}
	return out
}

func handMade(batch *pgx.Batch, p [][3]*draft, s int) {
	tenant := array(p, s, func(c *draft) id.TenantID { return c.Tenant })
	op := array(p, s, func(c *draft) id.OpID { return c.Op })
	message := func() {
		batch.Queue(`INSERT INTO messages (tenant_id, thread_id, seq, id, role, content, run_id, created_at)
			SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::uuid[], $5::text[], $6::text[], $7::uuid[], $8::timestamptz[])`, columns{
			tenant, array(p, s, func(c *draft) id.ThreadID { return c.Messages[0].Thread }), array(p, s, func(c *draft) int64 { return c.Messages[0].Seq }),
			array(p, s, func(c *draft) id.MessageID { return c.Messages[0].ID }), array(p, s, func(c *draft) string { return c.Messages[0].Role }),
			array(p, s, func(c *draft) string { return c.Messages[0].Content }), array(p, s, func(c *draft) id.RunID { return *c.Messages[0].Run }),
			array(p, s, func(c *draft) time.Time { return c.Messages[0].CreatedAt })}...)
	}
	run := func() {
		batch.Queue(`UPDATE runs r SET version = r.version + 1, owner_epoch = u.set_epoch, status = u.status, output = u.output, tokens_in = u.tokens_in,
			tokens_out = u.tokens_out, cost_usd = u.cost_usd, started_at = u.started_at, finished_at = u.finished_at, seq = u.seq, steps = u.steps, state = u.state, last_op = u.op
			FROM unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::bigint[], $5::bigint[], $6::text[], $7::json[], $8::bigint[], $9::bigint[], $10::float8[],
			$11::timestamptz[], $12::timestamptz[], $13::bigint[], $14::int[], $15::bytea[], $16::uuid[])
			AS u (tenant_id, id, version, epoch, set_epoch, status, output, tokens_in, tokens_out, cost_usd, started_at, finished_at, seq, steps, state, op)
			WHERE r.tenant_id = u.tenant_id AND r.id = u.id AND r.version = u.version AND r.owner_epoch = u.epoch`, columns{
			tenant, array(p, s, func(c *draft) id.RunID { return c.Run.ID }), array(p, s, func(c *draft) int64 { return c.Run.Version }),
			array(p, s, func(c *draft) int64 { return c.Run.Epoch }), array(p, s, func(c *draft) int64 { return c.Run.SetEpoch }),
			array(p, s, func(c *draft) string { return string(c.Run.Status) }), array(p, s, func(c *draft) *string { return text2(c.Run.Output) }),
			array(p, s, func(c *draft) int64 { return c.Run.TokensIn }), array(p, s, func(c *draft) int64 { return c.Run.TokensOut }),
			array(p, s, func(c *draft) float64 { return c.Run.CostUSD }), array(p, s, func(c *draft) *time.Time { return c.Run.StartedAt }),
			array(p, s, func(c *draft) *time.Time { return c.Run.FinishedAt }), array(p, s, func(c *draft) int64 { return c.Run.Seq }),
			array(p, s, func(c *draft) int { return c.Run.Steps }), array(p, s, func(c *draft) []byte { return c.Run.State }), op}...)
	}
	switch s {
	case 0:
		batch.Queue(`UPDATE threads t SET version = t.version + 1, owner_epoch = u.set_epoch, next_seq = u.next_seq, updated_at = u.updated_at, last_op = u.op
			FROM unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::timestamptz[], $8::uuid[])
			AS u (tenant_id, id, version, epoch, set_epoch, next_seq, updated_at, op)
			WHERE t.tenant_id = u.tenant_id AND t.id = u.id AND t.version = u.version AND t.owner_epoch = u.epoch`, columns{
			tenant, array(p, s, func(c *draft) id.ThreadID { return c.Thread.ID }), array(p, s, func(c *draft) int64 { return c.Thread.Version }),
			array(p, s, func(c *draft) int64 { return c.Thread.Epoch }), array(p, s, func(c *draft) int64 { return c.Thread.SetEpoch }),
			array(p, s, func(c *draft) int64 { return c.Thread.NextSeq }), array(p, s, func(c *draft) time.Time { return c.Thread.UpdatedAt }), op}...)
		batch.Queue(`INSERT INTO runs (tenant_id, id, status, agent_id, agent_version, thread_id, thread_seq, input, origin_kind, origin_id, created_at, last_op)
			SELECT u.t, u.i, 'queued', u.a, u.v, u.h, u.s, u.n, u.k, u.o, u.c, u.p
			FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::int[], $5::uuid[], $6::bigint[], $7::json[], $8::text[], $9::uuid[], $10::timestamptz[], $11::uuid[])
			AS u (t, i, a, v, h, s, n, k, o, c, p)`, columns{
			tenant, array(p, s, func(c *draft) id.RunID { return c.Accept.ID }), array(p, s, func(c *draft) id.AgentID { return *c.Accept.AgentID }),
			array(p, s, func(c *draft) int { return *c.Accept.AgentVersion }), array(p, s, func(c *draft) id.ThreadID { return *c.Accept.ThreadID }),
			array(p, s, func(c *draft) int64 { return *c.Accept.ThreadSeq }), array(p, s, func(c *draft) *string { return text2(c.Accept.Input) }),
			array(p, s, func(c *draft) string { return string(c.Accept.OriginKind) }), array(p, s, func(c *draft) id.UUID { return c.Accept.OriginID }),
			array(p, s, func(c *draft) time.Time { return c.Accept.CreatedAt }), op}...)
		message()
		batch.Queue(`INSERT INTO audit_log (tenant_id, id, at, actor, action, target_kind, target_id)
			SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::timestamptz[], $4::text[], $5::text[], $6::text[], $7::uuid[])`, columns{
			tenant, array(p, s, func(c *draft) id.AuditID { return c.Audit[0].ID }), array(p, s, func(c *draft) time.Time { return c.Audit[0].At }),
			array(p, s, func(c *draft) string { return c.Audit[0].Actor }), array(p, s, func(c *draft) string { return c.Audit[0].Action }),
			array(p, s, func(c *draft) string { return c.Audit[0].TargetKind }), array(p, s, func(c *draft) id.UUID { return c.Audit[0].TargetID })}...)
	case 1:
		run()
		batch.Queue(`INSERT INTO run_steps (tenant_id, run_id, idx, kind, name, status, agent_id, agent_version, began_seq, started_at)
			SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::int[], $4::text[], $5::text[], $6::text[], $7::uuid[], $8::int[], $9::bigint[], $10::timestamptz[])`, columns{
			tenant, array(p, s, func(c *draft) id.RunID { return c.Began[0].Run }), array(p, s, func(c *draft) int { return c.Began[0].Idx }),
			array(p, s, func(c *draft) string { return string(c.Began[0].Kind) }), array(p, s, func(c *draft) string { return c.Began[0].Name }),
			array(p, s, func(c *draft) string { return string(c.Began[0].Status) }), array(p, s, func(c *draft) id.AgentID { return *c.Began[0].AgentID }),
			array(p, s, func(c *draft) int { return *c.Began[0].AgentVersion }), array(p, s, func(c *draft) int64 { return c.Began[0].BeganSeq }),
			array(p, s, func(c *draft) time.Time { return c.Began[0].StartedAt })}...)
	case 2:
		run()
		batch.Queue(`UPDATE run_steps s SET status = u.status, output = u.output, segments = u.segments::int[], tokens_in = u.ti, tokens_out = u.tk, cost_usd = u.cost,
			ended_seq = u.es, finished_at = u.at
			FROM unnest($1::uuid[], $2::uuid[], $3::int[], $4::text[], $5::json[], $6::text[], $7::bigint[], $8::bigint[], $9::float8[], $10::bigint[], $11::timestamptz[])
			AS u (tenant_id, run_id, idx, status, output, segments, ti, tk, cost, es, at)
			WHERE s.tenant_id = u.tenant_id AND s.run_id = u.run_id AND s.idx = u.idx`, columns{
			tenant, array(p, s, func(c *draft) id.RunID { return c.Ended[0].Run }), array(p, s, func(c *draft) int { return c.Ended[0].Idx }),
			array(p, s, func(c *draft) string { return string(c.Ended[0].Status) }), array(p, s, func(c *draft) *string { return text2(c.Ended[0].Output) }),
			array(p, s, func(*draft) string { return "{0,1000}" }), array(p, s, func(c *draft) int64 { return c.Ended[0].TokensIn }),
			array(p, s, func(c *draft) int64 { return c.Ended[0].TokensOut }), array(p, s, func(c *draft) float64 { return c.Ended[0].CostUSD }),
			array(p, s, func(c *draft) *int64 { return c.Ended[0].EndedSeq }), array(p, s, func(c *draft) time.Time { return c.Ended[0].FinishedAt })}...)
		message()
		batch.Queue(`INSERT INTO usage_records (tenant_id, id, at, kind, run_id, agent_id, model, tokens_in, tokens_out, cost_usd)
			SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::timestamptz[], $4::text[], $5::uuid[], $6::uuid[], $7::text[], $8::bigint[], $9::bigint[], $10::float8[])`, columns{
			tenant, array(p, s, func(c *draft) id.UsageID { return c.Usage[0].ID }), array(p, s, func(c *draft) time.Time { return c.Usage[0].At }),
			array(p, s, func(c *draft) string { return string(c.Usage[0].Kind) }), array(p, s, func(c *draft) id.RunID { return *c.Usage[0].Run }),
			array(p, s, func(c *draft) id.AgentID { return *c.Usage[0].Agent }), array(p, s, func(c *draft) string { return c.Usage[0].Model }),
			array(p, s, func(c *draft) int64 { return c.Usage[0].TokensIn }), array(p, s, func(c *draft) int64 { return c.Usage[0].TokensOut }),
			array(p, s, func(c *draft) float64 { return c.Usage[0].CostUSD })}...)
	}
}

func text2(j json.RawMessage) *string {
	if j == nil {
		return nil
	}
	return ptr(string(j))
}

// BenchmarkRunPath measures the run path through the writer beside the raw limit
// of group commit, in turns on one database: raw with as many runs per batch as
// callers meet in a lane, and raw with the largest batch that a flush can be.
// The goal is a ratio of at least a half. Run it with -benchtime=20000x.
func BenchmarkRunPath(b *testing.B) {
	for _, n := range []int{benchCallers / 4, benchCallers} {
		b.Run(fmt.Sprintf("%d callers", n), func(b *testing.B) { runPath(b, n) })
	}
}

func runPath(b *testing.B, n int) {
	x, cluster, callers := benchWorld(b, benchLanes*maxFlush)
	const largestRound = benchLanes * maxFlush
	part := max(b.N/2/largestRound, 1) * largestRound // whole batches only
	var equal, largest, byWriter, own, backends time.Duration
	used := func() time.Duration {
		var sum time.Duration
		for _, l := range x.w.lanes {
			sum += cpuOf(b, l.conn.backend.pid)
		}
		return sum
	}
	b.ResetTimer()
	for range 2 {
		equal += raw(b, cluster, callers[:n], part)
		before, theirs := cpu(b), used()
		byWriter += write(b, x, callers[:n], part)
		own, backends = own+cpu(b)-before, backends+used()-theirs
		largest += raw(b, cluster, callers, part)
	}
	b.ReportMetric(float64(2*part)/equal.Seconds(), "raw-runs/s")
	b.ReportMetric(float64(2*part)/largest.Seconds(), "raw512-runs/s")
	b.ReportMetric(float64(2*part)/byWriter.Seconds(), "runs/s")
	b.ReportMetric(equal.Seconds()/byWriter.Seconds(), "ratio")
	b.ReportMetric(largest.Seconds()/byWriter.Seconds(), "ratio512")
	b.ReportMetric(float64(own.Microseconds())/float64(6*part), "own-cpu-µs/commit")
	b.ReportMetric(float64(backends.Microseconds())/float64(6*part), "backend-cpu-µs/commit")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkDecay writes 100,000 runs to a fresh database and shows the rate of
// each fifth. Run it with -benchtime=1x.
func BenchmarkDecay(b *testing.B) {
	x, _, callers := benchWorld(b, benchCallers)
	const slice = 20_000
	b.ResetTimer()
	for i := range 5 {
		took := write(b, x, callers, slice)
		b.ReportMetric(slice/took.Seconds(), fmt.Sprintf("runs/s-to-%dk", (i+1)*slice/1000))
	}
	b.ReportMetric(0, "ns/op")
}

// BenchmarkLatency is one caller alone: the price of a commit that shares its
// flush with nobody.
func BenchmarkLatency(b *testing.B) {
	x, _, callers := benchWorld(b, 1)
	b.ResetTimer()
	took := write(b, x, callers, b.N)
	b.ReportMetric(float64(took.Microseconds())/float64(3*b.N), "µs/commit")
	b.ReportMetric(0, "ns/op")
}
