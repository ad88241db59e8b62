package knowledge

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/blevesearch/snowballstem"
	"github.com/blevesearch/snowballstem/english"
	"github.com/blevesearch/snowballstem/german"

	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/document"
	"agentsvc/schemas/id"
	"agentsvc/schemas/knowledge"
	"agentsvc/schemas/model"
)

var embeddingsURL = flag.String("embeddings", "", "base URL of a server of embeddings, for BenchmarkQuality: bench/embeddings")

// The generated collection of BenchmarkQuality: a document for each item and matter, in two
// languages, and questions that name both in the document's words, by other words for the item, or by
// other words for both.
var (
	// English, another English word, German, another German word
	items = strings.Split(strings.TrimSpace(`
sofa|couch|Sofa|Couch
bicycle|bike|Fahrrad|Rad
laptop|notebook computer|Laptop|tragbarer Computer
mobile phone|smartphone|Handy|Smartphone
refrigerator|fridge|Kühlschrank|Eisschrank
car tyre|wheel rubber|Autoreifen|Pneu
jacket|coat|Jacke|Mantel
sneakers|trainers|Turnschuhe|Sportschuhe
spectacles|glasses|Brille|Sehhilfe
television|TV set|Fernseher|TV-Gerät
lawn mower|grass cutter|Rasenmäher|Grasschneider
suitcase|luggage|Koffer|Reisegepäck
wardrobe|closet|Kleiderschrank|Garderobenschrank
mattress|bed pad|Matratze|Bettauflage
kettle|water boiler|Wasserkocher|Teekocher
vacuum cleaner|hoover|Staubsauger|Bodensauger
headphones|earphones|Kopfhörer|Ohrhörer
printer|printing machine|Drucker|Druckgerät
drill|boring machine|Bohrmaschine|Bohrer
tent|camping shelter|Zelt|Campingunterkunft
stroller|baby carriage|Kinderwagen|Buggy
stove|cooker|Herd|Kochstelle
washing machine|laundry appliance|Waschmaschine|Waschautomat
wristwatch|timepiece|Armbanduhr|Uhr fürs Handgelenk
ring|jewel|Ring|Schmuckstück
novel|fiction book|Roman|erzählendes Buch
painting|picture|Gemälde|Bild
carpet|rug|Teppich|Läufer
curtain|drape|Vorhang|Gardine
lamp|light|Lampe|Leuchte
desk|writing table|Schreibtisch|Arbeitstisch
backpack|rucksack|Rucksack|Tornister
camera|photo device|Kamera|Fotoapparat
piano|grand keyboard|Klavier|Flügel
guitar|string instrument|Gitarre|Zupfinstrument
dishwasher|dish cleaning appliance|Spülmaschine|Geschirrspüler
blanket|duvet|Decke|Zudecke
pan|skillet|Pfanne|Bratgefäß
perfume|fragrance|Parfüm|Duft
doll|toy figure|Puppe|Spielfigur
aquarium|fish tank|Aquarium|Fischbecken
helmet|head protection|Helm|Kopfschutz`), "\n")
	// for each language: the sentence of the document, the question in its words, in other words
	matters = strings.Split(strings.TrimSpace(`
The %s can be returned within thirty days of purchase.|Within how many days of purchase can the %s be returned?|What if I do not want to keep my %s?|%s: Die Rückgabe ist innerhalb von dreißig Tagen nach dem Kauf möglich.|Bis wann nach dem Kauf ist die Rückgabe möglich: %s?|Ich möchte das nicht behalten, was nun: %s?
The warranty of the %s covers defects for two years.|Which defects does the warranty of the %s cover?|My %s is broken, who pays for the repair?|%s: Die Garantie deckt Defekte zwei Jahre lang ab.|Welche Defekte deckt die Garantie ab: %s?|Es ist kaputt, wer zahlt die Reparatur: %s?
Delivery of the %s takes five working days.|How many working days does delivery of the %s take?|When will my %s arrive?|%s: Die Lieferung dauert fünf Werktage.|Wie viele Werktage dauert die Lieferung: %s?|Wann kommt die Ware an: %s?
Clean the %s with a damp cloth and mild soap.|Should I clean the %s with a damp cloth?|How do I wash dirt off my %s?|%s: Mit einem feuchten Tuch und milder Seife reinigen.|Mit welchem Tuch reinigen: %s?|Wie entferne ich Schmutz: %s?
Assembly instructions of the %s are printed inside the lid.|Where are the assembly instructions of the %s printed?|How do I put the %s together?|%s: Die Montageanleitung ist im Deckel abgedruckt.|Wo ist die Montageanleitung abgedruckt: %s?|Wie baue ich die Teile zusammen: %s?
The price of the %s includes value added tax.|Does the price of the %s include value added tax?|How much money does the %s cost with duties?|%s: Der Preis enthält die Mehrwertsteuer.|Enthält der Preis die Mehrwertsteuer: %s?|Was muss ich inklusive Abgaben zahlen: %s?
Spare parts for the %s are ordered by their serial number.|How are spare parts for the %s ordered?|Where do I get a replacement component for my %s?|%s: Ersatzteile werden über die Seriennummer bestellt.|Wie werden Ersatzteile bestellt: %s?|Woher bekomme ich eine neue Komponente: %s?
An old %s is collected for recycling free of charge.|Is an old %s collected for recycling?|How do I get rid of my used %s?|%s: Ein altes Gerät oder Stück wird kostenlos zum Recycling abgeholt.|Wird das alte Stück zum Recycling abgeholt: %s?|Wie werde ich das gebrauchte Ding los: %s?
Insurance of the %s against theft costs two euros a month.|What does insurance of the %s against theft cost?|My %s was stolen, am I protected?|%s: Die Versicherung gegen Diebstahl kostet zwei Euro im Monat.|Was kostet die Versicherung gegen Diebstahl: %s?|Es wurde gestohlen, bin ich geschützt: %s?
The %s may be paid in twelve monthly instalments.|May the %s be paid in monthly instalments?|Can I buy the %s on credit?|%s: Die Bezahlung in zwölf Monatsraten ist möglich.|Ist die Bezahlung in Monatsraten möglich: %s?|Kann ich auf Kredit kaufen: %s?
The weight of the %s is given in kilograms on the label.|Where is the weight of the %s given?|How heavy is the %s?|%s: Das Gewicht steht in Kilogramm auf dem Etikett.|Wo steht das Gewicht in Kilogramm: %s?|Wie schwer ist die Sache: %s?
The colour of the %s cannot be changed after the order.|Can the colour of the %s be changed after the order?|I would rather have the %s in blue.|%s: Die Farbe kann nach der Bestellung nicht geändert werden.|Kann die Farbe nach der Bestellung geändert werden: %s?|Ich hätte sie lieber in Blau: %s`), "\n")
	padding = []string{"Our team is glad to help you.", "Please keep this page for later.", "This text was checked in spring.", "Unser Team hilft gern weiter.", "Bitte bewahren Sie diese Seite auf.", "Stand dieser Seite ist das Frühjahr."}
)

type question struct {
	text, kind string
	right      int // the document
}

func collection() (texts []string, questions []question) {
	r := rand.New(rand.NewPCG(11, 12))
	for language := range 2 {
		name := []string{"en", "de"}[language]
		for i, item := range items {
			words := strings.Split(item, "|")[2*language:]
			for m, matter := range matters {
				forms := strings.Split(matter, "|")[3*language:]
				text := fmt.Sprintf(forms[0], words[0])
				for range r.IntN(4) {
					text += " " + padding[3*language+r.IntN(3)]
				}
				if (i*len(matters)+m)%4 == 0 {
					for kind, q := range map[string]string{"same words": fmt.Sprintf(forms[1], words[0]), "other item": fmt.Sprintf(forms[1], words[1]), "other words": fmt.Sprintf(forms[2], words[0]), "all other": fmt.Sprintf(forms[2], words[1])} {
						questions = append(questions, question{q, name + ", " + kind, len(texts)})
					}
				}
				texts = append(texts, text)
			}
		}
	}
	return texts, questions
}

// The collection is as large as its results say: at least 1,000 documents and 200 questions, half of them in each of
// two languages, and no document or question twice.
func TestTheCollection(t *testing.T) {
	t.Parallel()
	texts, questions := collection()
	seen, of := map[string]bool{}, map[string]int{}
	for _, text := range texts {
		seen[text] = true
	}
	for _, q := range questions {
		seen[q.text] = true
		of[q.kind[:2]]++
		if german := q.right >= len(texts)/2; german != strings.HasPrefix(q.kind, "de") {
			t.Errorf("%q asks for a document of the other language", q.text)
		}
	}
	if len(texts) < 1000 || len(questions) < 200 || of["en"] != of["de"] || len(of) != 2 || len(seen) != len(texts)+len(questions) {
		t.Errorf("%d documents, %v questions, %d different texts", len(texts), of, len(seen))
	}
}

// remote is a server of embeddings.
type remote string

func (r remote) Embed(ctx context.Context, _ id.TenantID, m model.EmbeddingModel, texts []string) (out model.Embedded, err error) {
	body, _ := json.Marshal(map[string]any{"model": m.Name, "input": texts})
	q, err := http.NewRequestWithContext(ctx, "POST", string(r)+"/embeddings", bytes.NewReader(body))
	if err != nil {
		return out, err
	}
	resp, err := http.DefaultClient.Do(q)
	if err != nil {
		return out, err
	}
	defer resp.Body.Close()
	var answer struct {
		Data []struct{ Embedding []float32 }
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return out, err
	}
	for _, d := range answer.Data {
		length := 0.0
		for _, f := range d.Embedding {
			length += float64(f) * float64(f)
		}
		for i := range d.Embedding {
			d.Embedding[i] /= float32(math.Sqrt(length))
		}
		out.Vectors = append(out.Vectors, d.Embedding)
	}
	return out, nil
}

// baseline ranks by BM25 as others do.
type baseline struct {
	words  func(string) []string
	k1     float64
	first  int // the first of its documents
	counts []map[string]int
	length []int
	mean   float64
	in     map[string]int
}

func newBaseline(texts []string, first int, k1 float64, words func(string) []string) *baseline {
	p := &baseline{words: words, k1: k1, first: first, in: map[string]int{}}
	for _, t := range texts {
		words := words(t)
		counts := map[string]int{}
		for _, w := range words {
			counts[w]++
		}
		for w := range counts {
			p.in[w]++
		}
		p.counts, p.length, p.mean = append(p.counts, counts), append(p.length, len(words)), p.mean+float64(len(words))/float64(len(texts))
	}
	return p
}

func (p *baseline) search(query string) (best []int) {
	scores := make([]float64, len(p.counts))
	for _, w := range p.words(query) {
		idf := math.Log(1 + (float64(len(p.counts))-float64(p.in[w])+0.5)/(float64(p.in[w])+0.5))
		for i, c := range p.counts {
			if tf := float64(c[w]); tf > 0 {
				scores[i] += idf * tf * (p.k1 + 1) / (tf + p.k1*(0.25+0.75*float64(p.length[i])/p.mean))
			}
		}
	}
	for i := range scores {
		if scores[i] > 0 {
			best = append(best, i)
		}
	}
	slices.SortStableFunc(best, func(a, b int) int { return int(math.Copysign(1, scores[b]-scores[a])) })
	best = best[:min(10, len(best))]
	for i := range best {
		best[i] += p.first
	}
	return best
}

// spaced cuts words at spaces, in lower case, as the examples of rank_bm25 do.
func spaced(text string) []string { return strings.Fields(strings.ToLower(text)) }

// analysed returns what an analyzer of one language makes of a text: words of letters and digits in lower
// case, without stop words, reduced to their stems.
func analysed(stops string, stem func(*snowballstem.Env) bool) func(string) []string {
	stop := map[string]bool{}
	for w := range strings.FieldsSeq(stops) {
		stop[w] = true
	}
	return func(text string) (words []string) {
		for _, w := range strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
			if stop[w] {
				continue
			}
			e := snowballstem.NewEnv(w)
			stem(e)
			words = append(words, e.Current())
		}
		return words
	}
}

var (
	analysedEnglish = analysed("a an and are as at be but by for if in into is it no not of on or such that the their then there these they this to was will with", english.Stem)
	analysedGerman  = analysed(`aber alle als also am an ander auch auf aus bei bin bis bist da damit dann das dass dem den der des dessen die dies diese dieser dieses dir doch dort du durch
		ein eine einem einen einer eines er es etwas für gegen hab habe haben hat hatte ich ihm ihn ihr im in ist ja jede jeder jetzt kann kein keine können man mein mich mir mit muss nach nicht
		nichts noch nun nur ob oder ohne sehr sein seine sich sie sind so soll sonst über um und uns unter viel vom von vor war was weg weil welche wenn werde werden wie wieder will wir wird wo
		zu zum zur zwar zwischen`, german.Stem)
)

// BenchmarkQuality reports nDCG@10 of BM25 over words between spaces, of BM25 behind an analyzer of the
// question's language over the documents of that language alone (as Lucene has them: more than our search is
// told), of our lexical search and, with -embeddings, of our hybrid search. Each question has one right
// document. It is no measure of time: run it with -benchtime 1x.
func BenchmarkQuality(b *testing.B) {
	texts, questions := collection()
	db := pgtest.New(b)
	admin, chunks := db.Admin(b), NewChunks(db.System(b))
	exec := func(sql string, args ...any) {
		if _, err := admin.Exec(b.Context(), sql, args...); err != nil {
			b.Fatal(err)
		}
	}
	tenant, base := pgtest.Tenant(b, admin), id.KnowledgeBaseID{UUID: id.NewAnywhere()}
	var number int64
	if err := admin.QueryRow(b.Context(), `INSERT INTO knowledge_bases (tenant_id, id, name, embedding_provider, embedding_model) VALUES ($1, $2, 'base', 'p', 'm') RETURNING number`, tenant, base).Scan(&number); err != nil {
		b.Fatal(err)
	}
	var embedder Embedder
	if *embeddingsURL != "" {
		embedder = remote(*embeddingsURL)
	}
	for begin := 0; begin < len(texts); begin += 64 {
		batch := texts[begin:min(begin+64, len(texts))]
		var made model.Embedded
		if embedder != nil {
			var err error
			if made, err = embedder.Embed(b.Context(), tenant, pm, batch); err != nil || len(made.Vectors) != len(batch) {
				b.Fatal(err)
			}
		}
		for i, text := range batch {
			d := id.DocumentID{UUID: id.NewAnywhere()}
			exec(`INSERT INTO kb_documents (tenant_id, id, base_id, name, media_type, size_bytes, file, sha256, owes, generation, shown, chunks, status, embedded_by)
				VALUES ($1, $2, $3, $4, 'text/plain', 1, $5, '', false, 1, 1, 1, 'ready', $6)`, tenant, d, base, fmt.Sprint(begin+i), id.NewAnywhere(), pm.String())
			var vectors [][]float32
			if embedder != nil {
				vectors = made.Vectors[i : i+1]
			}
			if ok, err := chunks.Write(b.Context(), Target{tenant, d, base, number, 1, 1}, []document.Chunk{{Text: text, Tokens: 1}}, vectors); err != nil || !ok {
				b.Fatal(ok, err)
			}
		}
	}
	search := func(x *Index) func(question) []int {
		return func(q question) (found []int) {
			hits, err := x.Search(b.Context(), Query{Tenant: tenant, Base: base, Text: q.text, TopK: 10, Viewer: []string{knowledge.Public}})
			if err != nil {
				b.Fatal(err)
			}
			for _, h := range hits {
				var n int
				fmt.Sscan(h.DocumentName, &n)
				found = append(found, n)
			}
			return found
		}
	}
	type way struct {
		name   string
		search func(question) []int
	}
	all, half := newBaseline(texts, 0, 1.5, spaced), len(texts)/2 // the second half is German
	of := map[bool]*baseline{true: newBaseline(texts[:half], 0, 1.2, analysedEnglish), false: newBaseline(texts[half:], half, 1.2, analysedGerman)}
	ways := []way{
		{"plain-BM25", func(q question) []int { return all.search(q.text) }},
		{"analysed-BM25", func(q question) []int { return of[strings.HasPrefix(q.kind, "en")].search(q.text) }},
		{"lexical", search(NewIndex(db.API(b), nil))},
	}
	if embedder != nil {
		ways = append(ways, way{"hybrid", search(NewIndex(db.API(b), embedder))})
	}
	for b.Loop() {
		for _, way := range ways {
			sums, counts := map[string]float64{}, map[string]int{}
			for _, q := range questions {
				for _, kind := range []string{q.kind, "all"} {
					counts[kind]++
				}
				if at := slices.Index(way.search(q), q.right); at >= 0 {
					gain := 1 / math.Log2(float64(at)+2)
					sums[q.kind], sums["all"] = sums[q.kind]+gain, sums["all"]+gain
				}
			}
			for _, kind := range []string{"en, same words", "en, other item", "en, other words", "en, all other", "de, same words", "de, other item", "de, other words", "de, all other", "all"} {
				b.Logf("%-13s %-16s %4d questions  nDCG@10 %.3f", way.name, kind, counts[kind], sums[kind]/float64(counts[kind]))
			}
			b.ReportMetric(sums["all"]/float64(counts["all"]), way.name+"-nDCG@10")
		}
	}
}
