package model

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"agentsvc/schemas/jsontext"
	schema "agentsvc/schemas/model"
	fair "agentsvc/schemas/turn"
	"agentsvc/transport/egress"
	"agentsvc/transport/model/simulated"
)

// Limits of a request for embeddings.
const (
	maxEmbedTexts = 64
	maxEmbedBytes = 256 << 10 // of the texts of a request; a longer text goes alone
	maxDimensions = 8192
	embedTimeout  = 30 * time.Second // of one attempt

	// A response has 32 bytes for each number of the largest vectors, and as many JSON values as these have: a decoder spends
	// many times the size of small values. 64 KiB are for what stands beside the vectors.
	vectorBytes  = 32 * maxDimensions
	besideBytes  = 64 << 10
	vectorValues = maxDimensions + 16
	besideValues = 64

	// A response of more than smallEmbed has a place on the node for each of its texts, until it is decoded. The documents of a
	// tenant, two requests at a time (actors/ingest), leave some to its searches.
	smallEmbed = 64 << 10
	embedAll   = 640 // about 160 MiB as text
	embedEach  = 160
)

// Embedder returns the embeddings of a provider, the deployment's or a tenant's. Like a Client, it
// is cheap and not kept. Large responses wait for places in the turn of the tenant that the context names (turn.With).
func (r *Registry) Embedder(p Provider) schema.Embedder {
	switch {
	case p.Kind == Simulated:
		return countedEmbedder{Simulated, simulated.Embedder{}}
	case p.Kind != OpenAI:
		return noEmbeddings("a model provider of the kind " + p.Kind + " has no embeddings")
	case p.BaseURL == "" && p.APIKey == "":
		return noEmbeddings("the model provider " + p.Kind + " is not configured")
	}
	return countedEmbedder{p.Kind, newEmbeddings(r, p)}
}

// Embeds reports whether the deployment has a provider of that name that makes vectors.
func (r *Registry) Embeds(name string) bool { return name != Anthropic && r.Configured(name) }

// noEmbeddings is an Embedder that fails with this message.
type noEmbeddings string

// Embed implements schema.Embedder.
func (s noEmbeddings) Embed(context.Context, string, []string) (schema.Embedded, error) {
	return schema.Embedded{}, &schema.Error{Kind: schema.Refused, Message: string(s), BeforeFirstToken: true}
}

// embeddings is a client of POST {base_url}/embeddings.
type embeddings struct {
	upstream
	places *fair.Places
	sleep  func(context.Context, time.Duration) error
	random func() float64
}

func newEmbeddings(r *Registry, p Provider) *embeddings {
	base := strings.TrimRight(p.BaseURL, "/")
	if base == "" {
		base = openAIBase
	}
	e := &embeddings{upstream{hc: r.hc, kind: OpenAI, url: base + "/embeddings", key: p.APIKey, header: http.Header{
		"Content-Type": {"application/json"},
		"Accept":       {"application/json"},
	}}, r.embeds, r.c.Sleep, r.c.Rand}
	if p.APIKey != "" {
		e.header["Authorization"] = []string{"Bearer " + string(p.APIKey)}
	}
	if e.sleep == nil {
		e.sleep = sleepFor
	}
	if e.random == nil {
		e.random = rand.Float64
	}
	return e
}

// Embed implements schema.Embedder. It sends texts in batches, one after the other. A batch that
// fails because of the connection, 429 or 5xx is tried three times in all.
func (e *embeddings) Embed(ctx context.Context, model string, texts []string) (all schema.Embedded, err error) {
	for begin := 0; begin < len(texts); {
		end, size := begin, 0
		for end < len(texts) && end-begin < maxEmbedTexts && (end == begin || size+len(texts[end]) <= maxEmbedBytes) {
			size += len(texts[end])
			end++
		}
		one, err := e.patiently(ctx, model, texts[begin:end])
		all.TokensIn, all.Estimated = all.TokensIn+one.TokensIn, all.Estimated || one.Estimated
		if err == nil && begin > 0 && len(one.Vectors[0]) != len(all.Vectors[0]) {
			err = unusable("vectors of different numbers of dimensions", nil)
		}
		if err != nil {
			all.Vectors = nil
			return all, err
		}
		all.Vectors = append(all.Vectors, one.Vectors...)
		begin = end
	}
	return all, nil
}

// patiently embeds a batch, and tries again where that may help and the caller's deadline allows it.
func (e *embeddings) patiently(ctx context.Context, model string, texts []string) (schema.Embedded, error) {
	wait := firstPause
	for try := 1; ; try++ {
		out, err := e.batch(ctx, model, texts)
		var failed *schema.Error
		if err == nil || !errors.As(err, &failed) || failed.Kind != schema.Unavailable || try == tries {
			return out, err
		}
		d := max(time.Duration(float64(wait)*(0.75+e.random()/2)), min(failed.RetryAfter, maxRetryAfter))
		if until, ok := ctx.Deadline(); ok && time.Until(until) < d {
			return out, err
		}
		if e.sleep(ctx, d) != nil {
			return out, &schema.Error{Kind: schema.Cancelled, Message: "the embedding was cancelled", BeforeFirstToken: true, Err: context.Cause(ctx)}
		}
		wait *= pauseGrowth
	}
}

// batch embeds texts in one request.
func (e *embeddings) batch(ctx context.Context, model string, texts []string) (out schema.Embedded, err error) {
	body, bad := encode(struct {
		Model  string   `json:"model"`
		Input  []string `json:"input"`
		Format string   `json:"encoding_format"`
	}{model, texts, "float"})
	if bad != nil {
		return out, bad
	}
	once, cancel := context.WithTimeout(ctx, embedTimeout)
	defer cancel()
	resp, err := e.post(once, ctx, body, &turn{})
	if err != nil {
		return out, err
	}
	defer resp.Body.Close()
	most := len(texts)*vectorBytes + besideBytes
	answer, err := io.ReadAll(io.LimitReader(resp.Body, smallEmbed+1))
	if err == nil && len(answer) > smallEmbed {
		tenant := fair.Tenant(ctx)
		n, late := e.places.TakeSome(once, tenant, len(texts))
		if late != nil && ctx.Err() == nil {
			return out, &schema.Error{Kind: schema.Unavailable, Message: "this node had no room for the vectors in time", BeforeFirstToken: true, Err: late}
		} else if late != nil {
			return out, e.failed(ctx, &turn{}, late)
		}
		defer e.places.GiveSome(tenant, n)
		var rest []byte
		rest, err = io.ReadAll(io.LimitReader(resp.Body, int64(most-smallEmbed)))
		answer = append(answer, rest...)
	}
	switch {
	case errors.Is(err, egress.ErrTooLarge) || len(answer) > most:
		return out, unusable("a response that is too large", nil)
	case err != nil:
		return out, e.failed(ctx, &turn{}, err)
	}
	return readEmbeddings(answer, texts)
}

// unusable is the error of a response that has no vectors. A retry would not help.
func unusable(what string, err error) *schema.Error {
	return &schema.Error{Kind: schema.Broken, Message: "the provider of embeddings sent " + what, BeforeFirstToken: true, Err: err}
}

// readEmbeddings reads a response. A provider may send the vectors in another order.
func readEmbeddings(answer []byte, texts []string) (out schema.Embedded, err error) {
	var in struct {
		Data []struct {
			Index     *int      `json:"index"`
			Embedding []float32 `json:"embedding"`
		} `json:"data"`
		Usage struct {
			Prompt int64 `json:"prompt_tokens"`
			Total  int64 `json:"total_tokens"`
		} `json:"usage"`
	}
	if jsontext.Values(answer) > len(texts)*vectorValues+besideValues {
		return out, unusable("a response with too many values", nil)
	}
	if err := json.Unmarshal(answer, &in); err != nil {
		return out, unusable("a response that is not JSON with vectors", err)
	}
	if out.TokensIn = in.Usage.Prompt; out.TokensIn <= 0 {
		out.TokensIn = in.Usage.Total
	}
	out.TokensIn = schema.BoundTokens(out.TokensIn)
	if out.TokensIn == 0 {
		out.Estimated = true
		for _, t := range texts {
			out.TokensIn += schema.EstimateTokens(t)
		}
	}
	if len(in.Data) != len(texts) {
		return out, unusable("another number of vectors than there were texts", nil)
	}
	vectors := make([][]float32, len(texts))
	for i, d := range in.Data {
		at := i
		if d.Index != nil {
			at = *d.Index
		}
		switch {
		case at < 0 || at >= len(texts) || vectors[at] != nil:
			return out, unusable("vectors with wrong indexes", nil)
		case len(d.Embedding) == 0 || len(d.Embedding) > maxDimensions || len(d.Embedding) != len(in.Data[0].Embedding):
			return out, unusable("vectors of different or impossible numbers of dimensions", nil)
		case !unit(d.Embedding):
			return out, unusable("a vector without a direction", nil)
		}
		vectors[at] = d.Embedding
	}
	out.Vectors = vectors
	return out, nil
}

// unit scales a vector to length 1. It reports false if it has no direction.
func unit(v []float32) bool {
	sum := 0.0
	for _, f := range v {
		sum += float64(f) * float64(f)
	}
	by := 1 / math.Sqrt(sum)
	if !(sum > 0) || math.IsInf(sum, 0) || math.IsInf(by, 0) {
		return false
	}
	for i, f := range v {
		v[i] = float32(float64(f) * by)
	}
	return true
}

// countedEmbedder counts the requests of an Embedder.
type countedEmbedder struct {
	kind string
	schema.Embedder
}

// Embed implements schema.Embedder.
func (c countedEmbedder) Embed(ctx context.Context, model string, texts []string) (schema.Embedded, error) {
	out, err := c.Embedder.Embed(ctx, model, texts)
	outcome := "finished"
	if err != nil {
		outcome = string(schema.Broken)
		if failed := new(schema.Error); errors.As(err, &failed) {
			outcome = string(failed.Kind)
		}
	}
	embeds.WithLabelValues(c.kind, outcome).Inc()
	tokens.WithLabelValues(c.kind, "embedded").Add(float64(out.TokensIn))
	return out, err
}
