package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/valyala/fasthttp"
)

// peerCommand makes this binary the River peer: an HTTP front whose POST inserts
// a message, an audit row and the job in one transaction, and workers that write
// one step and finish with JobCompleteTx.
const peerCommand = "peer-river"

type runArgs struct {
	Run [16]byte `json:"run"`
}

func (runArgs) Kind() string { return "run" }

type runWorker struct {
	river.WorkerDefaults[runArgs]
	pool *pgxpool.Pool
}

func (w *runWorker) Work(ctx context.Context, job *river.Job[runArgs]) error {
	tx, err := w.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx)
	if _, err := tx.Exec(ctx, `insert into bench_steps (run_id, idx, kind, output) values ($1, 0, 'llm', '{"text":"ok"}')`, job.Args.Run); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `update bench_runs set status = 'done', finished_at = now() where id = $1`, job.Args.Run); err != nil {
		return err
	}
	if _, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

// nodeArgs is one job of a chain, which does what a tool node does.
type nodeArgs struct {
	Run   [16]byte `json:"run"`
	Order int      `json:"order"`
	Idx   int      `json:"idx"`
	Of    int      `json:"of"`
	Tool  string   `json:"tool"`
}

func (nodeArgs) Kind() string { return "node" }

type nodeWorker struct {
	river.WorkerDefaults[nodeArgs]
	pool *pgxpool.Pool
	http *fasthttp.Client
}

// Work makes the commit of a tool node: after the call, the result with the receipt of the next
// call and the next job.
func (w *nodeWorker) Work(ctx context.Context, job *river.Job[nodeArgs]) error {
	a := job.Args
	answer, err := w.call(&a)
	if err != nil {
		return err
	}
	tx, err := w.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx)
	if _, err := tx.Exec(ctx, `update bench_steps set output = $3 where run_id = $1 and idx = $2`, a.Run, a.Idx, answer); err != nil {
		return err
	}
	if next := a; a.Idx+1 < a.Of {
		next.Idx++
		if _, err := tx.Exec(ctx, receipt, next.Run, next.Idx); err != nil {
			return err
		}
		_, err = river.ClientFromContext[pgx.Tx](ctx).InsertTx(ctx, tx, next, nil)
	} else {
		_, err = tx.Exec(ctx, `update bench_runs set status = 'done', finished_at = now() where id = $1`, a.Run)
	}
	if err != nil {
		return err
	}
	if _, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

const receipt = `insert into bench_steps (run_id, idx, kind) values ($1, $2, 'tool')`

// call calls the tool as the service does.
func (w *nodeWorker) call(a *nodeArgs) (json.RawMessage, error) {
	req, resp := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
	defer fasthttp.ReleaseRequest(req)
	defer fasthttp.ReleaseResponse(resp)
	req.Header.SetMethod("POST")
	req.SetRequestURI(a.Tool)
	req.SetBodyString(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"orders.refund","arguments":{"order":%d}}}`, a.Order))
	if err := w.http.Do(req, resp); err != nil {
		return nil, err
	}
	return append(json.RawMessage{}, resp.Body()...), nil
}

func riverPeer(ctx context.Context, dsn, addr string) error {
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return err
	}
	cfg.MaxConns = 64
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer pool.Close()
	if _, err := pool.Exec(ctx, `
		create table if not exists bench_runs (id uuid primary key, status text not null, created_at timestamptz not null default now(), finished_at timestamptz);
		create table if not exists bench_messages (id uuid primary key, run_id uuid not null, content text not null);
		create table if not exists bench_audit (id uuid primary key, at timestamptz not null default now(), actor text not null, action text not null);
		create table if not exists bench_steps (run_id uuid not null, idx int not null, kind text not null, output json, primary key (run_id, idx))`); err != nil {
		return err
	}
	driver := riverpgxv5.New(pool)
	migrator, err := rivermigrate.New(driver, nil)
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, &runWorker{pool: pool})
	river.AddWorker(workers, &nodeWorker{pool: pool, http: newClient()})
	c, err := river.NewClient(driver, &river.Config{
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 256}},
		Workers:           workers,
		FetchCooldown:     time.Millisecond,
		FetchPollInterval: 100 * time.Millisecond,
		Logger:            slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
	})
	if err != nil {
		return err
	}
	if err := c.Start(ctx); err != nil {
		return err
	}
	srv := &fasthttp.Server{Handler: func(r *fasthttp.RequestCtx) {
		var err error
		switch string(r.Path()) {
		case "/runs":
			run := newID()
			err = accept(ctx, pool, c, run, string(r.PostBody()), runArgs{run})
		case "/chains":
			first := nodeArgs{Run: newID()}
			if err = json.Unmarshal(r.PostBody(), &first); err == nil {
				err = accept(ctx, pool, c, first.Run, string(r.PostBody()), first)
			}
		default:
			return // ready
		}
		if err != nil {
			r.Error(err.Error(), 500)
			return
		}
		r.SetStatusCode(202)
	}}
	go func() {
		<-ctx.Done()
		srv.Shutdown()
	}()
	return srv.ListenAndServe(addr)
}

func accept(ctx context.Context, pool *pgxpool.Pool, c *river.Client[pgx.Tx], run [16]byte, content string, first river.JobArgs) error {
	message, audit := newID(), newID()
	tx, err := pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx)
	var batch pgx.Batch
	batch.Queue(`insert into bench_runs (id, status) values ($1, 'queued')`, run)
	batch.Queue(`insert into bench_messages (id, run_id, content) values ($1, $2, $3)`, message, run, content)
	batch.Queue(`insert into bench_audit (id, actor, action) values ($1, 'apikey', 'message.create')`, audit)
	if _, ok := first.(nodeArgs); ok {
		batch.Queue(receipt, run, 0)
	}
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return err
	}
	if _, err := c.InsertTx(ctx, tx, first, nil); err != nil {
		return fmt.Errorf("insert: %w", err)
	}
	return tx.Commit(ctx)
}

// newID is a UUID of version 7, so that the peer's indexes grow at their end.
func newID() (u [16]byte) {
	rand.Read(u[:])
	ms := uint64(time.Now().UnixMilli())
	for i := range 6 {
		u[i] = byte(ms >> (40 - 8*i))
	}
	u[6], u[8] = u[6]&0x0f|0x70, u[8]&0x3f|0x80
	return u
}
