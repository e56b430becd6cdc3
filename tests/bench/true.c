/* The cheapest command there is: the benches start it, so its own cost must be small. */
int main(void)
{
	return 0;
}
