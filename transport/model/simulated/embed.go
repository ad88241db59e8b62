package simulated

import (
	"context"
	"math"

	"agentsvc/schemas/lexis"
	schema "agentsvc/schemas/model"
)

// Dimensions of the vectors of an Embedder.
const Dimensions = 256

// Embedder makes vectors without a model: each word and each three neighbouring letters of a word
// add to a dimension that their hash chooses. Texts that share words, or parts of words, are near
// each other. It is deterministic and has no state.
type Embedder struct{}

// Embed implements schema.Embedder, whatever the model's name is.
func (Embedder) Embed(ctx context.Context, _ string, texts []string) (out schema.Embedded, err error) {
	if ctx.Err() != nil {
		return out, &schema.Error{Kind: schema.Cancelled, Message: "the embedding was cancelled", BeforeFirstToken: true, Err: context.Cause(ctx)}
	}
	for _, t := range texts {
		out.TokensIn += schema.EstimateTokens(t)
		out.Vectors = append(out.Vectors, vector(t))
	}
	return out, nil
}

func vector(text string) []float32 {
	var sums [Dimensions]float64
	add := func(s string, weight float64) {
		h := lexis.Hash(s)
		if h&1 != 0 {
			weight = -weight
		}
		sums[(h>>1)%Dimensions] += weight
	}
	terms, _ := lexis.Index(text)
	for _, t := range terms {
		weight := 1 + math.Log(float64(len(t.Positions)))
		add(t.Word, weight)
		letters := []rune("^" + t.Word + "$")
		for i := 0; i+3 <= len(letters); i++ {
			add("~"+string(letters[i:i+3]), weight/4)
		}
	}
	length := 0.0
	for _, s := range sums {
		length += s * s
	}
	if length == 0 { // a text without words, or whose words cancel out
		sums[0], length = 1, 1
	}
	v := make([]float32, Dimensions)
	for i, s := range sums {
		v[i] = float32(s / math.Sqrt(length))
	}
	return v
}
