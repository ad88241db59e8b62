package knowledge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"agentsvc/schemas/id"
	"agentsvc/schemas/model"
)

const (
	// EmbedTimeout bounds the embedding of a query. A provider that needs longer is left out.
	EmbedTimeout = 2 * time.Second
	// embedPause is for how long a provider that did not answer is not asked for the vectors of queries.
	embedPause = 5 * time.Second
	// billTimeout bounds the write of a usage record.
	billTimeout = 2 * time.Second
	// maxPaused bounds the memory of providers that did not answer.
	maxPaused = 10_000
)

// Embedder makes vectors of texts (transport/model/provider).
type Embedder interface {
	Embed(ctx context.Context, t id.TenantID, m model.EmbeddingModel, texts []string) (model.Embedded, error)
}

// paused remembers the providers that did not answer, so that searches do not wait for them again
// and again.
type paused struct {
	mu    sync.Mutex // guards the field below
	until map[pausedAt]time.Time
}

type pausedAt struct {
	tenant   id.TenantID
	provider string
}

func (p *paused) now(k pausedAt) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Now().Before(p.until[k])
}

func (p *paused) set(k pausedAt, d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.until) >= maxPaused {
		clear(p.until)
	}
	p.until[k] = time.Now().Add(d)
}

// embed returns the query's vector for each of the models, and what they used; and whether a model was left
// out because of its provider.
func (x *Index) embed(ctx context.Context, q *Query, names []string) (vectors map[string][]float32, used []usage, fallback bool) {
	ctx, cancel := context.WithTimeout(ctx, x.embedTime)
	defer cancel()
	out := make([]*model.Embedded, len(names))
	var asked sync.WaitGroup
	for i, name := range names {
		m := model.ParseEmbeddingModel(name)
		at := pausedAt{q.Tenant, m.Provider}
		if x.paused.now(at) {
			continue
		}
		asked.Go(func() {
			got, err := x.embedder.Embed(ctx, q.Tenant, m, []string{q.Text})
			if err == nil && len(got.Vectors) == 1 {
				out[i] = &got
				return
			}
			out[i] = &model.Embedded{TokensIn: got.TokensIn, CostUSD: got.CostUSD, Estimated: got.Estimated}
			if failed := new(model.Error); !errors.As(err, &failed) || failed.Kind != model.Cancelled || errors.Is(ctx.Err(), context.DeadlineExceeded) {
				x.paused.set(at, x.pause)
			}
		})
	}
	asked.Wait()
	vectors = map[string][]float32{}
	for i, o := range out {
		if o != nil && o.TokensIn > 0 {
			used = append(used, usage{model.ParseEmbeddingModel(names[i]).Name, *o})
		}
		if o == nil || o.Vectors == nil {
			fallback = true
			continue
		}
		vectors[names[i]] = o.Vectors[0]
	}
	return vectors, used, fallback
}

// models returns the models of the vectors that the viewer may see.
func models(ctx context.Context, tx pgx.Tx, q *Query) ([]string, error) {
	rows, err := tx.Query(ctx, q.sql().models, q.Tenant, q.Base, q.Viewer)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// usage is what the embedding of a query used.
type usage struct {
	model string
	model.Embedded
}

// bill writes usage records. It goes on when the caller has left: what was used is billed.
func (x *Index) bill(ctx context.Context, q *Query, used []usage) error {
	if len(used) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), x.billTime)
	defer cancel()
	batch := &pgx.Batch{}
	batch.Queue("SELECT set_config('svc.tenant', $1, true)", q.Tenant.String())
	for _, u := range used {
		var detail json.RawMessage
		if u.Estimated {
			detail = json.RawMessage(`{"estimated":true}`)
		}
		batch.Queue(billSQL, q.Tenant, id.UsageID{UUID: id.NewAnywhere()}, q.Run, q.Agent, u.model, u.TokensIn, u.CostUSD, detail)
	}
	if err := x.pool.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("bill the embedding of a query: %w", err)
	}
	return nil
}
