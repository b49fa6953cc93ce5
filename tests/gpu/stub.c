/* A library that loads and has none of the functions that it should: gcc -shared -fPIC -o libcudnn.so.9 stub.c */
int planforge_stub(void) { return 0; }
