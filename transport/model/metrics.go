package model

import (
	"context"
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	schema "agentsvc/schemas/model"
)

var (
	turns = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "svc_model_turns_total",
		Help: "Turns requested of models, by kind of provider and outcome; retries count as one turn.",
	}, []string{"kind", "outcome"})
	tokens = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "svc_model_tokens_total",
		Help: "Tokens of finished turns, and of embedded texts, by kind of provider and direction (in, out, embedded).",
	}, []string{"kind", "direction"})
	embeds = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "svc_model_embeddings_total",
		Help: "Calls for vectors of texts, by kind of provider and outcome; batches and retries count as one call.",
	}, []string{"kind", "outcome"})
	firstToken = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "svc_model_first_token_seconds",
		Help:    "Time from the request to the first token, of the attempt that succeeded.",
		Buckets: []float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120},
	}, []string{"kind"})
)

// Collectors returns the metrics of this package.
func Collectors() []prometheus.Collector {
	return []prometheus.Collector{turns, tokens, embeds, firstToken}
}

// counted counts a client's turns.
type counted struct {
	kind string
	schema.Client
}

// Stream implements schema.Client.
func (c counted) Stream(ctx context.Context, req *schema.Request, sink schema.Sink) (*schema.Result, error) {
	res, err := c.Client.Stream(ctx, req, sink)
	if err == nil {
		turns.WithLabelValues(c.kind, "finished").Inc()
		tokens.WithLabelValues(c.kind, "in").Add(float64(res.TokensIn))
		tokens.WithLabelValues(c.kind, "out").Add(float64(res.TokensOut))
		return res, nil
	}
	outcome := "broken"
	var e *schema.Error
	if errors.As(err, &e) {
		outcome = string(e.Kind)
	}
	turns.WithLabelValues(c.kind, outcome).Inc()
	return nil, err
}
