package simulated

import (
	"math"
	"testing"
)

func TestVectorsOfSimilarTexts(t *testing.T) {
	t.Parallel()
	out, err := Embedder{}.Embed(t.Context(), "any", []string{"Refunds of orders take three days", "the refund of an order", "Delivery of parcels by express", "?!", ""})
	if err != nil || len(out.Vectors) != 5 || out.TokensIn == 0 {
		t.Fatal(out, err)
	}
	cosine := func(a, b int) (sum float64) {
		for i := range out.Vectors[a] {
			sum += float64(out.Vectors[a][i]) * float64(out.Vectors[b][i])
		}
		return sum
	}
	for i := range out.Vectors {
		if math.Abs(cosine(i, i)-1) > 1e-5 {
			t.Errorf("vector %d is not of length 1", i)
		}
	}
	if cosine(0, 1) < 2*cosine(0, 2) {
		t.Errorf("the same matter %v, another %v", cosine(0, 1), cosine(0, 2))
	}
	again, _ := Embedder{}.Embed(t.Context(), "other", []string{"Refunds of orders take three days"})
	if again.Vectors[0][7] != out.Vectors[0][7] {
		t.Error("not deterministic")
	}
}
