package lexis

import (
	"strings"

	"github.com/blevesearch/snowballstem"
	"github.com/blevesearch/snowballstem/dutch"
	"github.com/blevesearch/snowballstem/english"
	"github.com/blevesearch/snowballstem/french"
	"github.com/blevesearch/snowballstem/german"
	"github.com/blevesearch/snowballstem/italian"
	"github.com/blevesearch/snowballstem/portuguese"
	"github.com/blevesearch/snowballstem/spanish"
	"github.com/blevesearch/snowballstem/swedish"
)

// languages are those with stems, in the order in which a tie is decided.
var languages = []string{"en", "de", "fr", "es", "it", "pt", "nl", "sv"}

var stemmers = map[string]func(string) string{
	"en": stemmer(english.Stem), "de": stemmer(german.Stem), "fr": stemmer(french.Stem), "es": stemmer(spanish.Stem),
	"it": stemmer(italian.Stem), "pt": stemmer(portuguese.Stem), "nl": stemmer(dutch.Stem), "sv": stemmer(swedish.Stem),
}

func stemmer(stem func(*snowballstem.Env) bool) func(string) string {
	return func(word string) string {
		e := snowballstem.NewEnv(word)
		stem(e)
		if s := e.Current(); s != "" {
			return s
		}
		return word
	}
}

// stopWords are the most frequent words of each language, without their accents.
var stopWords = map[string]map[string]bool{
	"en": set("a an and are as at be been but by can do does for from had has have how i if in into is it its me my no not of on or our should so than that the their them there they this to was we were what when where which who why will with would you your"),
	"de": set("aber als am an auch auf aus bei bin bis das dass dem den der des die diese dieser dieses ein eine einem einen einer eines er es fur hat ich ihr im in ist ja kann man mein mit nach nicht noch nur oder sein sich sie sind so uber um und uns unter vom von vor war was wenn wer werden wie wie wir wird wo zu zum zur"),
	"fr": set("a au aux avec ce ces cette comment dans de des du elle en est et eux il ils je la le les leur lui ma mais me mes moi mon ne nos notre nous on ou par pas pour qu que quel quelle qui sa se ses son sont sur ta te tes toi ton tu un une vos votre vous"),
	"es": set("a al como con cual cuando de del desde donde el ella ellos en entre era es esta este esto la las le lo los mas me mi muy no nos o para pero por porque que se sin sobre su sus te tu un una uno unos y ya"),
	"it": set("a al alla anche che chi ci come con da dal dalla dei del della delle di dove e ed gli ha il in io la le lo loro ma mi nel nella noi non o per perche piu quale quando quello questa questo se si sono su sul sulla tra un una uno voi"),
	"pt": set("a ao aos as com como da das de dele do dos e ela em entre era essa esse esta este eu foi isso ja la mais mas me mesmo meu minha muito na nao nas no nos o onde os ou para pela pelo por qual quando que quem se sem seu sua tambem te um uma voce"),
	"nl": set("aan als bij dat de den der deze die dit door een en er had heb het hij hoe hun ik in is ja je kan maar me met mijn naar niet nog nu of om onder ons ook op over te tot uit van veel voor want was wat we wel wie wij wordt zal ze zich zij zijn zo"),
	"sv": set("alla att av blev bli da de den denna det dig din du efter ej eller en ett fran for ha hade han hans har hon hur i icke inte jag kan man med men mig min mot mycket nar ni nu nagon och om oss pa sa sig sin som till under upp ut vad var vi vid vilken"),
}

func set(words string) map[string]bool {
	m := map[string]bool{}
	for _, w := range strings.Fields(words) {
		m[w] = true
	}
	return m
}

// guess returns the language of words by their stop words; empty if nothing says one. A text of
// ASCII letters without any counts as English, the most likely one.
func guess(words []word) string {
	counts := map[string]int{}
	ascii := true
	for i, w := range words {
		if i == 2000 {
			break
		}
		for _, language := range languages {
			if stopWords[language][w.text] {
				counts[language]++
			}
		}
		for j := 0; j < len(w.text); j++ {
			ascii = ascii && w.text[j] < 0x80
		}
	}
	best := ""
	for _, language := range languages {
		if counts[language] > counts[best] {
			best = language
		}
	}
	if best == "" && ascii && len(words) > 0 {
		return "en"
	}
	return best
}
