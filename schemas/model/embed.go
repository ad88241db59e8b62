package model

import (
	"context"
	"strings"
)

// EmbeddingModel is a model that makes vectors of texts. Vectors of different models cannot be
// compared.
type EmbeddingModel struct {
	Provider string // the slug of a provider
	Name     string // the provider's name of the model
}

// String returns the form in which rows hold it. A slug has no slash, a name may have some.
func (m EmbeddingModel) String() string { return m.Provider + "/" + m.Name }

// ParseEmbeddingModel reads what String returns.
func ParseEmbeddingModel(s string) EmbeddingModel {
	provider, name, _ := strings.Cut(s, "/")
	return EmbeddingModel{provider, name}
}

// Embedded is the vectors of texts, and what they cost.
type Embedded struct {
	Vectors   [][]float32 // one for each text, of one number of dimensions and of length 1
	TokensIn  int64       // the provider's count or, if it reports none, an estimate; then Estimated is set
	Estimated bool
	CostUSD   float64
}

// Embedder calls the embeddings of one provider. Embed returns an *Error or no error. With an error
// there are no vectors, but TokensIn still counts what the provider answered before.
type Embedder interface {
	Embed(ctx context.Context, model string, texts []string) (Embedded, error)
}
