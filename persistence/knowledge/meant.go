package knowledge

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"agentsvc/schemas/lexis"
)

// Bounds of the search for words that were meant. A query of words that are nowhere reaches them.
const (
	maxSimilar      = 500     // chunks that are read
	maxSimilarBytes = 1 << 20 // of their texts
	maxMeant        = 8       // words of a query
)

// errEnough ends the reading of chunks.
var errEnough = errors.New("enough")

// meant replaces words that occur nowhere by words that are nearly written the same way, among the
// chunks that the viewer may see and that have a word with the same beginning.
func meant(ctx context.Context, tx pgx.Tx, q *Query, number int64, few bool, words [][]string) ([][]string, error) {
	var wrong [][]string
	var beginnings []string
	for _, alternatives := range words {
		if r := []rune(alternatives[0]); len(r) >= 4 && len(wrong) < maxMeant {
			wrong = append(wrong, alternatives)
			beginnings = append(beginnings, lexeme(number, string(r[:2]))+":*")
		}
	}
	if len(beginnings) == 0 {
		return nil, nil
	}
	slices.Sort(beginnings)
	sql := q.sql().similar
	if few {
		sql = q.sql().fewSimilar
	}
	rows, err := tx.Query(ctx, sql, q.Tenant, q.Base, q.Viewer, strings.Join(slices.Compact(beginnings), "|"), maxSimilar)
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	var text string
	read := 0
	if _, err := pgx.ForEachRow(rows, []any{&text}, func() error {
		if read += len(text); read > maxSimilarBytes {
			return errEnough
		}
		for _, w := range lexis.Words(text) {
			known[w] = true
		}
		return nil
	}); err != nil && !errors.Is(err, errEnough) {
		return nil, err
	}
	var out [][]string
	for _, alternatives := range wrong {
		var near []string
		for w := range known {
			if alike(alternatives[0], w) {
				near = append(near, w)
			}
		}
		slices.Sort(near)
		var all []string
		for _, w := range near[:min(len(near), 5)] {
			for _, p := range lexis.Parse(w).Words {
				all = append(all, p...)
			}
		}
		if len(all) > 0 {
			out = append(out, all)
		}
	}
	return out, nil
}

// alike reports whether two words begin with the same two characters and differ by one change, from
// eight characters on by two: a character more, less, another one, or two that changed places.
func alike(a, b string) bool {
	x, y := []rune(a), []rune(b)
	most := 1
	if len(x) >= 8 {
		most = 2
	}
	if len(x) < 4 || len(y) < 3 || x[0] != y[0] || x[1] != y[1] || max(len(x)-len(y), len(y)-len(x)) > most {
		return false
	}
	before, last, now := make([]int, len(y)+1), make([]int, len(y)+1), make([]int, len(y)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(x); i++ {
		now[0] = i
		least := i
		for j := 1; j <= len(y); j++ {
			cost := 1
			if x[i-1] == y[j-1] {
				cost = 0
			}
			now[j] = min(last[j]+1, now[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && x[i-1] == y[j-2] && x[i-2] == y[j-1] {
				now[j] = min(now[j], before[j-2]+1)
			}
			least = min(least, now[j])
		}
		if least > most {
			return false
		}
		before, last, now = last, now, before
	}
	return last[len(y)] <= most
}
