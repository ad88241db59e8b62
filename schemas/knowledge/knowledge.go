// Package knowledge defines what the parts of knowledge bases agree on (open-parts.md, Knowledge
// bases, Knowledge, Evidence): who may see a document, what a search finds, and the marks by
// which answers cite it. It is pure.
//
// The rows of bases, documents and sources are changed by transactions of persistence/store,
// like the rows of triggers: every change of a document's or a source's row counts its version
// up, and is followed by durable.Wake to the row's actor (ingest, sync). The actors move what
// follows from the rows. persistence/knowledge writes chunks and searches them.
package knowledge

import (
	"regexp"
	"strconv"
	"strings"

	"agentsvc/schemas/id"
)

// Limits (open-parts.md, Sizes; service.md, Knowledge base).
const (
	MaxFileBytes  = 50 << 20 // one document
	MaxFiles      = 20       // documents of one upload
	MaxQueryRunes = 2000
	DefaultTopK   = 5
	MaxTopK       = 50

	DefaultMaxTokens     = 400
	DefaultOverlapTokens = 60
)

// Principals of a document's ACL, as rows hold them.
const Public = "public"

// EndUser returns the principal of one end user.
func EndUser(u id.EndUserID) string { return "end_user:" + u.String() }

// Group returns the principal of the end users whose attributes.groups name the group.
func Group(name string) string { return "group:" + name }

// Viewer returns the principals of the person for whom a search is made: an end user with the
// groups of its attributes, or no person (nil). A document is seen if its ACL is empty or shares
// a principal with these.
func Viewer(u *id.EndUserID, groups []string) []string {
	all := []string{Public}
	if u != nil {
		all = append(all, EndUser(*u))
		for _, g := range groups {
			all = append(all, Group(g))
		}
	}
	return all
}

// Hit is one result of a search.
type Hit struct {
	ChunkID      id.ChunkID    `json:"chunk_id" doc:"The chunk. Its id changes when its document is indexed anew."`
	DocumentID   id.DocumentID `json:"document_id" doc:"The document."`
	DocumentName string        `json:"document_name" doc:"The document's name."`
	URI          *string       `json:"uri" doc:"The document's address at its source; null: it was uploaded."`
	Text         string        `json:"text" doc:"The text found."`
	Score        float64       `json:"score" doc:"How well it matches; higher is better. Comparable within one response only."`
	Position     int           `json:"position" doc:"Of the chunk in its document, from 0."`
	Cite         string        `json:"cite" doc:"The mark by which answers cite it, in brackets: kb:<document_id>#<position>."`
	Why          *Why          `json:"why,omitempty" doc:"Why it was found; only if the search says explain."`
}

// Why explains a hit.
type Why struct {
	WordsRank   *int    `json:"words_rank" doc:"Its place in the ranking by words, from 1; null: it is not in there."`
	VectorsRank *int    `json:"vectors_rank" doc:"Its place in the ranking by vectors, from 1; null: it is not in there, or the search went by words only."`
	Principal   *string `json:"principal" doc:"The entry of the document's ACL that lets the search see it: public, end_user:<id> or group:<name>; null: the document has no ACL."`
}

// Cite returns the mark of a chunk, without its brackets.
func Cite(d id.DocumentID, position int) string {
	return "kb:" + d.String() + "#" + strconv.Itoa(position)
}

// Mark is a citation that a text contains.
type Mark struct {
	Document id.DocumentID
	Position int
}

var marks = regexp.MustCompile(`\[kb:([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12})#([0-9]{1,7})\]`)

// Marks returns the citations in a text, each once, in the order of their first place, and no
// more than MaxMarks.
func Marks(text string) (list []Mark) {
	if !strings.Contains(text, "[kb:") {
		return nil
	}
	seen := map[Mark]bool{}
	for rest := text; len(list) < MaxMarks; {
		at := marks.FindStringSubmatchIndex(rest)
		if at == nil {
			break
		}
		m := []string{"", rest[at[2]:at[3]], rest[at[4]:at[5]]}
		rest = rest[at[1]:]
		d, err := id.Parse(m[1])
		if err != nil {
			continue
		}
		n, err := strconv.Atoi(m[2])
		if err != nil {
			continue
		}
		if mark := (Mark{id.DocumentID{UUID: d}, n}); !seen[mark] {
			seen[mark] = true
			list = append(list, mark)
		}
	}
	return list
}
