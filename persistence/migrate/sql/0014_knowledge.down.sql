DROP TABLE kb_chunks, kb_documents, knowledge_sources, knowledge_bases;
