package knowledge

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"agentsvc/schemas/document"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lexis"
	"agentsvc/schemas/lifecycle"
)

// Document is a document's row as its actor needs it, with its base's settings.
type Document struct {
	Name          string
	MediaType     string
	Size          int64
	Content       int
	File          id.FileID
	Status        lifecycle.DocumentStatus
	Error         *string
	SourceError   *string
	Attempts      int
	Chunks        int
	Shown         int
	Generation    int
	ReadContent   int
	ReadSettings  int
	Owes          bool
	Deleted       bool
	Version       int64
	Epoch         int64
	Base          id.KnowledgeBaseID
	Number        int64
	Settings      int
	MaxTokens     int
	OverlapTokens int
	EmbedProvider *string
	EmbedModel    *string
	EmbeddedBy    *string
}

// Chunks writes the chunks of documents. It is safe for concurrent use.
type Chunks struct{ pool *pgxpool.Pool }

// NewChunks returns a Chunks over a pool of the role svc_system.
func NewChunks(pool *pgxpool.Pool) *Chunks { return &Chunks{pool} }

// Document returns a document; nil if there is none.
func (s *Chunks) Document(ctx context.Context, t id.TenantID, d id.DocumentID) (*Document, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	rows, err := s.pool.Query(ctx, loadSQL, t, d)
	if err != nil {
		return nil, fmt.Errorf("load document %s: %w", d, err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByName[Document])
	if err != nil || len(list) == 0 {
		return nil, err
	}
	return list[0], nil
}

// Target is the generation of a document that is being written.
type Target struct {
	Tenant     id.TenantID
	Document   id.DocumentID
	Base       id.KnowledgeBaseID
	Number     int64 // of the base
	Generation int
	Content    int
}

// Write adds chunks to a generation, with their vectors unless there are none (nil). It reports false, and writes nothing, if the generation is no
// longer the document's last one, or the document has another content or was deleted.
func (s *Chunks) Write(ctx context.Context, to Target, chunks []document.Chunk, vectors [][]float32) (ok bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	n := len(chunks)
	positions, ids, texts, overlaps, headings, pages, tokens, lengths, terms, lexemes := make([]int, n), make([]id.ChunkID, n), make([]string, n), make([]int, n),
		make([]string, n), make([]int, n), make([]int, n), make([]int, n), make([][]byte, n), make([]string, n)
	packed := make([][]byte, n)
	for i, v := range vectors {
		packed[i] = packVector(v)
	}
	for i, c := range chunks {
		words, length := lexis.Index(c.Heading + "\n" + c.Text)
		positions[i], ids[i], texts[i], overlaps[i], headings[i], pages[i], tokens[i], lengths[i] =
			c.Position, id.ChunkID{UUID: id.NewAnywhere()}, c.Text, c.Overlap, c.Heading, c.Page, c.Tokens, length
		terms[i], lexemes[i] = pack(words), lexemesOf(to.Number, words)
	}
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		held, err := tx.Query(ctx, holdSQL, to.Tenant, to.Document, to.Generation, to.Content)
		if err != nil {
			return err
		}
		ok = held.Next()
		held.Close()
		if err := held.Err(); err != nil || !ok {
			return err
		}
		_, err = tx.Exec(ctx, writeSQL, to.Tenant, to.Document, to.Generation, to.Base, positions, ids, texts, overlaps, headings, pages, tokens, lengths, terms, lexemes, packed)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("write chunks of document %s: %w", to.Document, err)
	}
	return ok, nil
}

// Vectors returns the vectors that a generation of the target's document has of the same chunks: nil for a chunk that it has not, or with
// another text.
func (s *Chunks) Vectors(ctx context.Context, to Target, generation int, chunks []document.Chunk) ([][]float32, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	out, at, positions := make([][]float32, len(chunks)), make(map[int]int, len(chunks)), make([]int, len(chunks))
	for i, c := range chunks {
		at[c.Position], positions[i] = i, c.Position
	}
	rows, err := s.pool.Query(ctx, madeSQL, to.Tenant, to.Document, generation, positions)
	if err == nil {
		var position int
		var heading, text string
		var packed []byte
		_, err = pgx.ForEachRow(rows, []any{&position, &heading, &text, &packed}, func() error {
			if i := at[position]; chunks[i].Heading == heading && chunks[i].Text == text {
				out[i] = unpackVector(packed)
			}
			return nil
		})
	}
	if err != nil {
		return nil, fmt.Errorf("read vectors of document %s: %w", to.Document, err)
	}
	return out, nil
}

// TakeBack takes back that a generation was begun: it is no attempt. It does nothing if the generation is no longer the document's last
// one, or the document has another content.
func (s *Chunks) TakeBack(ctx context.Context, to Target) error {
	if _, err := s.pool.Exec(ctx, takeBackSQL, to.Tenant, to.Document, to.Generation, to.Content); err != nil {
		return fmt.Errorf("take back an attempt of document %s: %w", to.Document, err)
	}
	return nil
}

// dropAtOnce is the number of chunks that one statement of Drop deletes.
const dropAtOnce = 1000

// Drop deletes the chunks of a document that belong to another generation than keep, up to the last one that the caller
// knows: a later one belongs to another activation. A Write that has begun is waited for, and a later one writes nothing if the document is
// deleted or has a later generation.
func (s *Chunks) Drop(ctx context.Context, t id.TenantID, d id.DocumentID, keep, last int) error {
	one, cancel := context.WithTimeout(ctx, writeTimeout)
	_, err := s.pool.Exec(one, awaitSQL, t, d)
	cancel()
	if err != nil {
		return fmt.Errorf("wait for writers of document %s: %w", d, err)
	}
	for {
		one, cancel := context.WithTimeout(ctx, writeTimeout)
		tag, err := s.pool.Exec(one, dropSQL, t, d, keep, last, dropAtOnce)
		cancel()
		if err != nil {
			return fmt.Errorf("delete chunks of document %s: %w", d, err)
		}
		if tag.RowsAffected() < dropAtOnce {
			return nil
		}
	}
}

// packed is the size of a packed term: the hash of the word, and how often it occurs.
const packed = 5

// pack returns terms sorted by the hashes of their words.
func pack(terms []lexis.Term) []byte {
	type count struct {
		hash uint32
		n    int
	}
	counts := make([]count, 0, len(terms))
	for _, t := range terms {
		counts = append(counts, count{lexis.Hash(t.Word), len(t.Positions)})
	}
	slices.SortFunc(counts, func(a, b count) int { return int(int64(a.hash) - int64(b.hash)) })
	out := make([]byte, 0, packed*len(counts))
	for _, c := range counts {
		out = append(binary.BigEndian.AppendUint32(out, c.hash), byte(min(c.n, 255)))
	}
	return out
}

// occurs returns how often a word occurs in packed terms.
func occurs(terms []byte, hash uint32) int {
	n := len(terms) / packed
	lo, hi := 0, n
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if binary.BigEndian.Uint32(terms[mid*packed:]) < hash {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo < n && binary.BigEndian.Uint32(terms[lo*packed:]) == hash {
		return int(terms[lo*packed+4])
	}
	return 0
}

// Postgres' limits of a tsvector.
const (
	maxPosition  = 16383
	maxPositions = 255
	maxLexemes   = 900 << 10 // bytes; the limit is 1 MiB
)

// lexemesOf returns the tsvector of a chunk, as text.
func lexemesOf(base int64, terms []lexis.Term) string {
	var b strings.Builder
	for _, t := range terms {
		if b.Len() > maxLexemes {
			break
		}
		b.WriteString(lexeme(base, t.Word))
		for i, p := range t.Positions {
			if i == maxPositions {
				break
			}
			if i == 0 {
				b.WriteByte(':')
			} else {
				b.WriteByte(',')
			}
			b.WriteString(strconv.Itoa(min(p, maxPosition)))
		}
		b.WriteByte(' ')
	}
	return b.String()
}

var quoting = strings.NewReplacer(`'`, `''`, `\`, `\\`, "\x00", "")

// lexeme returns a word of a base as text of a tsvector or tsquery.
func lexeme(base int64, word string) string {
	return "'" + strconv.FormatInt(base, 36) + ":" + quoting.Replace(word) + "'"
}
